"""The space for recorded rewinds is bounded per client: a few an hour, a few bytes each."""

import asyncio

import pytest

from manifold.contracts import keys, topics
from manifold.contracts.ecq import Rewind
from manifold.contracts.envelope import Stream
from manifold.contracts.messages import ReceiptStatus
from manifold.messaging.mqtt import Message, Mqtt
from manifold.recorder import _rate_limit
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._parser import Incoming, Parser
from manifold.recorder._rate_limit import BURST, MAX_KEPT_BYTES, Admission, RateLimit, rewound_queue
from manifold.recorder._redelivered import RedeliveredMessages
from manifold.settings import Settings
from tests.manifold.recorder.harness import Harness, metric
from tests.support.servers import wait_until

PER_HOUR = 60
EACH_S = 3600 / PER_HOUR


def rewind(client_id: str = "V1", payload: bytes = b"earliest", **more: object) -> Message:
    return Message(f"{topics.ECQ_REWIND_PREFIX}{client_id}", payload, **more)  # type: ignore[arg-type]  # of any field


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limit(clock: Clock) -> RateLimit:
    return RateLimit(PER_HOUR, rewound_queue, clock)


def admitted(limit: RateLimit, count: int, client_id: str = "V1") -> int:
    return sum(limit.judge(rewind(client_id)) is Admission.ADMITTED for _ in range(count))


def test_a_burst_is_admitted_then_one_at_a_time(limit: RateLimit, clock: Clock) -> None:
    assert admitted(limit, 100) == BURST
    clock.now += EACH_S
    assert admitted(limit, 100) == 1
    clock.now += 3 * EACH_S
    assert admitted(limit, 100) == 3
    clock.now += 24 * 3600
    assert admitted(limit, 100) == BURST


def test_each_client_has_its_own_limit(limit: RateLimit) -> None:
    assert [admitted(limit, 100, client_id) for client_id in ("V1", "V2")] == [BURST, BURST]


def test_recorded_refusals_are_bounded_by_the_rewind_rate(limit: RateLimit, clock: Clock) -> None:
    hours, told = 5, 0
    for _ in range(hours * 3600):
        clock.now += 1
        told += sum(limit.judge(rewind()) is Admission.REFUSED for _ in range(3))
    assert 0 < told <= hours * PER_HOUR


def test_without_a_limit_all_are_admitted() -> None:
    assert admitted(RateLimit(0, rewound_queue), 1000) == 1000


def test_other_messages_are_not_counted(limit: RateLimit) -> None:
    write = Message(f"{topics.ECQ_WRITE_PREFIX}V1/k", b"")
    assert all(limit.judge(write) is Admission.ADMITTED for _ in range(100))


def test_clients_beyond_the_maximum_are_forgotten_oldest_first(limit: RateLimit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rate_limit, "MAX_CLIENTS", 2)
    for client_id in ("V1", "V2", "V3"):
        admitted(limit, 100, client_id)
    assert [admitted(limit, 100, client_id) for client_id in ("V3", "V2", "V1")] == [0, 0, BURST]


# At the recorder ------------------------------------------------------------------------------------------------------


def taken(parser: Parser, count: int, payload: bytes = b"earliest") -> list[Incoming]:
    return [parser.build(rewind(payload=payload, mid=n + 1)) for n in range(count)]


@pytest.mark.parametrize("payload", [b"earliest", b"nowhere"])
def test_excess_rewinds_are_refused_once_and_then_dropped(payload: bytes) -> None:
    parser = Parser(Settings(), DedupeWindow(1))
    *early, first, second = taken(parser, BURST + 2, payload)

    assert [isinstance(each.ecq, Rewind) for each in early] == [payload == b"earliest"] * BURST
    assert not any(each.is_dropped for each in (*early, first))
    assert second.is_dropped
    for each in (first, second):
        assert each.receipt.status is ReceiptStatus.REFUSED
        assert "ecq_rewinds_per_hour=60" in str(each.refused_because)
        assert not each.offerable
    assert second.receipt.seq == first.receipt.seq, "the record that replaces it"
    assert "only the first such refusal is recorded" in str(second.receipt.reason)


def test_an_unrecorded_rewind_is_unknown_on_redelivery() -> None:
    parser, resent = Parser(Settings(), DedupeWindow(1)), RedeliveredMessages()
    for incoming in taken(parser, BURST + 2):
        resent.remember(incoming)

    known = [resent.find(rewind(dup=True, mid=n + 1)) is not None for n in range(BURST + 2)]
    assert known == [True] * (BURST + 1) + [False]


def test_a_malformed_rewind_is_kept_truncated() -> None:
    parser = Parser(Settings(), DedupeWindow(1))
    large = rewind(payload=b"x" * 1_000_000, user_properties=[("a", "b" * 60_000)])

    kept = parser.build(large)
    assert kept.envelope.payload == b"x" * MAX_KEPT_BYTES
    assert "a" not in kept.envelope.headers
    assert "1000000 bytes" in str(kept.refused_because)


def test_a_client_that_rewinds_endlessly_fills_no_journal(home: Harness) -> None:
    """Through a real broker: all are acknowledged, few are recorded, and a later write is accepted."""
    flood = 300

    async def send() -> None:
        async with Mqtt(f"mqtt://127.0.0.1:{home.broker.port}", "sdv-pub-flood") as mqtt:
            await mqtt.wait_connected()
            await asyncio.gather(*(mqtt.publish(f"{topics.ECQ_REWIND_PREFIX}V1", b"earliest") for _ in range(flood)))
            await mqtt.publish(f"{topics.ECQ_WRITE_PREFIX}V1/k", b"newest")

    dropped = 'manifold_recorder_messages_total{status="dropped",stream="ecq"}'
    asyncio.run(send())
    wait_until(lambda: metric(home, dropped) == flood - BURST - 1, what="all messages to be counted")
    wait_until(lambda: len(home.keys(f"{keys.ecq_keys('V1')[0]}")) == 1, what="the write to be queued")
    home.flush()
    of_ecq = home.archived(Stream.ECQ)
    assert [envelope.refused_because is None for envelope in of_ecq] == [True] * BURST + [False, True]
    assert of_ecq[-1].payload == b"newest"
