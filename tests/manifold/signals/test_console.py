"""The console on a running signals service and without one."""

import json
from typing import Any

from manifold.console._watch import SIGNAL_QUEUES, SIGNAL_RATES
from manifold.contracts.signals import topology
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.manifold.signals.gateway import Door, Gateway, body_of, now_text, signed
from tests.support.console import manifold
from tests.support.servers import ROOT, free_port, wait_until


def sample(settings: Settings) -> dict[str, Any]:
    done = manifold("watch", "--count", "1", "--json", env=environment(settings))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def findings(settings: Settings) -> dict[str, Any]:
    done = manifold("doctor", "--json", env=environment(settings))
    return {finding["check"]: finding for finding in json.loads(done.stdout)}


def test_watch_shows_the_signal_rate_and_backlog(door: Door, gateway: Gateway) -> None:
    stale = body_of("stale")
    gateway.send(stale, signed(stale, device="stale", timestamp=now_text(-8000)))
    wait_until(lambda: gateway.count(topology.DEAD) == 1, what="a dead letter")

    seen = wait_until(
        lambda: (s := sample(door.settings))["waiting"]["dead letters"] == 1 and s, what="the signals service to check again"
    )

    assert SIGNAL_RATES.keys() <= seen["per_second"].keys()
    assert {what: seen["waiting"][what] for what in SIGNAL_QUEUES} == {
        "signals": 0,
        "signals to be tried again": 0,
        "dead letters": 1,
    }
    shown = manifold("watch", "--count", "1", env=environment(door.settings)).stdout
    assert "signals processed a second" in shown


def test_without_signals_nothing_is_shown_of_them(door: Door) -> None:
    seen = sample(door.settings.model_copy(update={"with_signals": False}))

    assert not SIGNAL_RATES.keys() & seen["per_second"].keys()
    assert not SIGNAL_QUEUES.keys() & seen["waiting"].keys()


def test_every_watched_metric_of_signals_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert [name for name, _ in (SIGNAL_RATES | SIGNAL_QUEUES).values() if f"| `{name}` |" not in page] == []


def test_the_doctor_checks_the_signals_service(door: Door) -> None:
    well = findings(door.settings)
    ill = findings(door.settings.model_copy(update={"signals_port": free_port(), "signals_keys_file": "/no/such/ring"}))

    names = ("rabbitmq", "signals", "signatures of signals", "key ring of signals")
    assert [well[name]["passed"] for name in names] == [True] * 4
    assert [ill[name]["passed"] for name in names] == [True, False, False, False]
    assert "k1 wraps" in well["key ring of signals"]["seen"]
    assert "/no/such/ring cannot be read" in ill["key ring of signals"]["seen"]
