"""What a round says of itself: every line that concerns a delivery names the vehicle, the seq and the request."""

import logging

import pytest
import structlog
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from dispatcher import _metrics_log
from dispatcher._events import Verb
from dispatcher._metrics_log import count_answers
from manifold.contracts.ecq import EcqAck
from manifold.contracts.events import PresenceSign
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.queues.verbs.claims import Claim, Park, Release, ReleaseReason, ReleaseReply, UpdatePresence, UpdatePresenceReply
from manifold.queues.verbs.ecq import Acknowledge
from manifold.queues.verbs.ecq import AckReply as EcqAckReply
from manifold.queues.verbs.ends import Ack, AckReply, End, EndReply
from tests.dispatcher.steps import ABSENT, CLAIMED, NONE, NOW, SEQ, VIN, answered


@pytest.fixture(autouse=True)
def as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow, where another test has loaded it, leaves every logger of this process with its own filters, or disabled."""
    structlog.reset_defaults()
    monkeypatch.setattr(_metrics_log, "log", structlog.get_logger(_metrics_log.__name__))
    monkeypatch.setattr(logging.getLogger(_metrics_log.__name__), "disabled", False)


def ended(outcome: Outcome) -> OutcomeRecord:
    return OutcomeRecord(VIN, SEQ, outcome, NOW, reason="why")


def logged_by(verb: Verb, reply: object) -> list[dict[str, object]]:
    with capture_logs() as lines:
        count_answers([(VIN, answered(verb, reply))], {SEQ: "task_a_1"}.get)
    return [dict(line) for line in lines]


@pytest.mark.parametrize(
    ("verb", "reply", "event"),
    [
        pytest.param(Release(SEQ, ReleaseReason.DEADLINE), ReleaseReply("released", 1), "released", id="by its deadline"),
        pytest.param(
            UpdatePresence(PresenceSign(), True), UpdatePresenceReply("noted", SEQ, NONE), "released", id="with its session"
        ),
        pytest.param(Park(SEQ, "d1"), ABSENT, "parked", id="for want of data"),
    ],
)
def test_what_goes_another_way_gets_a_line_with_vehicle_seq_and_request(verb: Verb, reply: object, event: str) -> None:
    (line,) = logged_by(verb, reply)

    assert (line["event"], line["vin"], line["seq"], line["request_id"]) == (event, VIN, SEQ, "task_a_1")


@pytest.mark.parametrize(
    ("verb", "reply"),
    [
        pytest.param(End((ended(Outcome.EXPIRED),)), EndReply((Outcome.EXPIRED,), NONE), id="expired"),
        pytest.param(End((ended(Outcome.CANCELLED),)), EndReply((Outcome.CANCELLED,), NONE), id="cancelled"),
        pytest.param(Ack(ended(Outcome.FAILED)), AckReply("ended", None, 3, NONE), id="failed"),
    ],
)
def test_an_entry_that_ends_otherwise_gets_a_line_with_vehicle_seq_and_request(verb: Ack | End, reply: object) -> None:
    (line,) = logged_by(verb, reply)

    outcome = verb.record.outcome if isinstance(verb, Ack) else verb.records[0].outcome
    assert {name: line[name] for name in ("event", "vin", "seq", "request_id", "outcome", "reason")} == {
        "event": "ended",
        "vin": VIN,
        "seq": SEQ,
        "request_id": "task_a_1",
        "outcome": outcome.value,
        "reason": "why",
    }


@pytest.mark.parametrize(
    ("verb", "reply"),
    [
        pytest.param(End((ended(Outcome.EXPIRED),)), EndReply((Outcome.DELIVERED,), NONE), id="it was delivered before"),
        pytest.param(End((ended(Outcome.EXPIRED),)), EndReply((None,), NONE), id="it is in flight"),
        pytest.param(Ack(ended(Outcome.FAILED)), AckReply("known", None, None, NONE), id="it had ended before"),
    ],
)
def test_what_does_not_end_so_gets_no_line(verb: Verb, reply: object) -> None:
    assert logged_by(verb, reply) == []


@pytest.mark.parametrize(
    ("word", "passed_over", "counted"),
    [
        pytest.param("ended", False, (1, 0), id="acknowledged"),
        pytest.param("unknown", False, (1, 0), id="acknowledged late, and superseded"),
        pytest.param("known", False, (0, 0), id="acknowledged before"),
        pytest.param("undone", False, (0, 0), id="brought back by a rewind since"),
        pytest.param("ended", True, (0, 1), id="passed over"),
        pytest.param("sent", True, (0, 0), id="not passed over yet"),
    ],
)
def test_messages_of_compacted_queues_are_counted_as_they_end(word: str, passed_over: bool, counted: tuple[int, int]) -> None:
    def counts() -> list[float]:
        names = ("manifold_dispatcher_ecq_delivered_total", "manifold_dispatcher_ecq_passed_over_total")
        return [REGISTRY.get_sample_value(name) or 0.0 for name in names]

    before = counts()
    logged_by(Acknowledge(EcqAck(VIN, SEQ, NOW, passed_over=passed_over)), EcqAckReply(word, NOW - 5, 1, 0, NONE))
    assert tuple(after - b for after, b in zip(counts(), before, strict=True)) == counted


def test_a_delivery_is_told_only_to_who_asks_for_every_line(caplog: pytest.LogCaptureFixture) -> None:
    ack = Ack(ended(Outcome.DELIVERED), "task_a_1")
    reply = AckReply("ended", NOW - 5, 1, CLAIMED._replace(attempts=2))
    assert logged_by(ack, reply) == []

    with caplog.at_level(logging.DEBUG):
        lines = logged_by(ack, reply) + logged_by(Claim(), CLAIMED)

    assert [line["event"] for line in lines] == ["acknowledged", "claimed", "claimed"]
    assert all((line["vin"], line["seq"], line["request_id"]) == (VIN, SEQ, "task_a_1") for line in lines)
