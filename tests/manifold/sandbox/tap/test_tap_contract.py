"""The tap over Mosquitto, compared with recorded exchanges with EMQX. Every difference must be in the table below.

The recordings and the recorder are next to the repository. A case mostly waits, so several run concurrently, each worker with its
own tap and broker: every case uses the same service client ids.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.manifold.sandbox.tap.conftest import TapServer, open_tap_server
from tests.support.servers import ROOT

EMQX = ROOT.parent / "shared" / "emqx"
RECORDER, TRACES = EMQX / "record.py", EMQX / "traces"
WORKERS = 8
PLAY_S = 120

pytestmark = [
    pytest.mark.skipif(not RECORDER.exists(), reason=f"no recordings of EMQX at {EMQX}: check them out beside this repository"),
    pytest.mark.timeout(400),
]

SLOW_FIRST = (
    "client_ids",
    "access_refused",
    "will_on_crash",
    "keepalive_timeout",
    "disconnect_changes_expiry",
    "session_expires",
)
NOT_PLAYED = {
    "admin_kick": "needs EMQX's management API",
    "access_refused_hard": "needs EMQX's management API",
    "reconnect_storm": "its order is chance, so the recorder never compares it",
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """A known difference: its traces, its lines of the comparison, and why it cannot be avoided."""

    traces: str
    lines: str
    because: str
    chance: bool = False  # not deterministic

    def covers(self, trace: str, line: str) -> bool:
        return bool(re.fullmatch(self.traces, trace) and re.fullmatch(self.lines, line))


ALLOWED = (
    Allowed(
        r"keepalive_timeout\.\w+",
        r"(vehicle received: - (DISCONNECT|\(closed\))|watch events of \S+: - event disconnected \S+)",
        "Mosquitto looks for silent clients every few seconds: with a keep-alive of 2 s it may take longer than the case waits",
        chance=True,
    ),
    Allowed(
        r"message_expiry\.5",
        r".*(message_expiry_interval|Message-Expiry-Interval): 58 -> 57",
        "Mosquitto counts a message's age in whole seconds of the clock",
        chance=True,
    ),
    Allowed(
        r"access_refused\.\w+",
        r"vehicle-25 received: SUBACK: reasons: \[(128|135)\] -> \[1\]"
        r"|watch events of \S+: event subscribed \S+: json\.topic: 'agent/(\S+)/proxy/request/#' -> 'agent/\2/#'"
        r"|watch events of \S+: (\+ event subscribed|[+-] event (connected|disconnected)) \S+",
        "the recordings are older than the right of acl.conf to all filters under the own name: EMQX refused agent/<own id>/#; "
        "because of the event of this subscription, those around it are compared one subscription earlier",
    ),
    Allowed(
        r"client_ids\.\w+",
        r"watch events of a[+#]b: - event (connected|disconnected) a[+#]b",
        "Mosquitto takes no publish to a topic with a wildcard character in it, so there is nowhere to tell it",
    ),
    Allowed(
        r"dispatcher_311\.\w+|publish_to_nobody\.\w+",
        r"watch events of (sdv-dispatcher-2|<assigned>): - event dropped \S+",
        "a publisher on MQTT 3.1.1, or with QoS 0, is not told that nobody subscribes; so neither is the tap",
    ),
    Allowed(
        r"(message_expiry|overload_queue)\.\w+",
        r"watch events of \S+: - event delivery_dropped \S+ \d+",
        "what the broker throws out of a session is seen by nobody; and here its queue is longer than EMQX's",
    ),
    Allowed(
        r"(dispatcher_311|message_expiry|overload_inflight)\.\w+",
        r"watch events of \S+: event (delivered|acked) \S+( \d+)?: json\.id: '<id \d+>' -> '<id \d+>'",
        "ids are counted by first appearance, and an event before is missing or one more: see the others of this case",
    ),
    Allowed(
        r"overlapping_subscriptions\.311",
        r"vehicle (received: - PUBLISH \S+|sent: - PUBACK)|watch events of \S+: - event (delivered|acked) \S+ 1",
        "Mosquitto delivers once to a client on MQTT 3.1.1 whose filters overlap",
    ),
    Allowed(
        r"overload_inflight\.\w+",
        r"vehicle received: (\+ PUBLISH \S+|PUBLISH \S+: (mid|properties\.user_property): .*)"
        r"|watch events of \S+: (\+ event delivered \S+ 35|[+-] event acked \S+ 3)",
        "with 32 unacknowledged Mosquitto lets three follow two PUBACKs; what follows is then compared a line earlier",
    ),
    Allowed(
        r"shared_dispatchers\.\w+",
        r"members events of \S+: - event \w+ \S+( \d+)?",
        "Mosquitto 2.0 gives no message on a topic that begins with $ to a shared subscription: services do without",
    ),
    Allowed(
        r".*",
        r"\S+ events of .+: event connected .+: json\.max_packet_size: 'absent' -> 'undefined'",
        "the recordings are older than this field of manifold.conf",
    ),
)


def recorder(*arguments: str, within_s: float = PLAY_S) -> str:
    done = subprocess.run(
        [sys.executable, str(RECORDER), *arguments],
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
        encoding="utf-8",
    )
    assert not done.stderr, done.stderr
    return done.stdout


def recorded() -> list[str]:
    """The traces that can be replayed here, such as `takeover.5`; the longest first."""
    names = sorted(path.name.removesuffix(".jsonl") for path in TRACES.glob("*.jsonl"))
    return sorted((name for name in names if case_of(name) not in NOT_PLAYED), key=lambda name: case_of(name) not in SLOW_FIRST)


def case_of(trace: str) -> str:
    return trace.split(".")[0]


def play(trace: str, port: int, folder: Path) -> list[str]:
    """Replay one trace; return every line of its comparison with EMQX's."""
    case, protocol = trace.split(".")
    recorder("record", f"127.0.0.1:{port}", "--to", str(folder), "--case", case, "--protocol", protocol)
    compared = recorder("compare", str(TRACES / f"{trace}.jsonl"), str(folder / f"{trace}.jsonl")).split(
        "\n\nDifferences by field"
    )[0]
    first, *lines = compared.strip().splitlines()
    assert re.fullmatch(rf"{re.escape(trace)}\.jsonl: (same|\d+ differences)", first), first
    return [line.strip() for line in lines]


def unexplained(trace: str, lines: list[str]) -> list[str]:
    return [line for line in lines if not any(known.covers(trace, line) for known in ALLOWED)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SimpleQueue[TapServer]"]:
    """Taps that also report `delivered`, each with its own broker."""
    homes = [tmp_path_factory.mktemp(f"contract-{n}") for n in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        opened = list(pool.map(lambda home: open_tap_server(home, delivered=True), homes))
    free: SimpleQueue[TapServer] = SimpleQueue()
    for server in opened:
        free.put(server)
    yield free
    for server in opened:
        server.stop()


@pytest.fixture(scope="module")
def played(servers: "SimpleQueue[TapServer]", tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The differences of every trace."""
    folder = tmp_path_factory.mktemp("traces")

    def worker(trace: str) -> list[str]:
        server = servers.get()
        try:
            found = play(trace, server.port, folder)
            # The recording waits a fixed third of a second for events: on a busy machine a trace gets a second attempt.
            return play(trace, server.port, folder) if unexplained(trace, found) else found
        finally:
            servers.put(server)

    with ThreadPoolExecutor(WORKERS) as pool:
        names = recorded()
        return dict(zip(names, pool.map(worker, names), strict=True))


@pytest.mark.parametrize("trace", recorded())
def test_the_tap_publishes_the_events_of_emqx(trace: str, played: dict[str, list[str]]) -> None:
    assert unexplained(trace, played[trace]) == []


def test_every_allowed_difference_occurs(played: dict[str, list[str]]) -> None:
    seen = [(trace, line) for trace, lines in played.items() for line in lines]

    unused = [known.because for known in ALLOWED if not known.chance and not any(known.covers(*each) for each in seen)]

    assert unused == []


def test_every_recorded_case_is_replayed_or_has_a_reason() -> None:
    names = {line.split()[0] for line in recorder("cases").splitlines()}

    assert names == {case_of(trace) for trace in recorded()} | set(NOT_PLAYED)
