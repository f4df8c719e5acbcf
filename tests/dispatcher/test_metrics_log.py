"""Log lines of a batch: every line about a delivery names vehicle, seq and request."""

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
    """Undo logging filters that Airflow, loaded by another test, leaves on all loggers."""
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
        pytest.param(
            Release(SEQ, ReleaseReason.DEADLINE), ReleaseReply("released", 1), "entry pending again", id="by its deadline"
        ),
        pytest.param(
            UpdatePresence(PresenceSign(), True),
            UpdatePresenceReply("noted", SEQ, NONE),
            "entry pending again",
            id="with its session",
        ),
        pytest.param(Park(SEQ, "d1"), ABSENT, "entry parked", id="without its data"),
    ],
)
def test_an_abnormal_delivery_is_logged_with_vehicle_seq_and_request(verb: Verb, reply: object, event: str) -> None:
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
def test_an_abnormal_outcome_is_logged_with_vehicle_seq_and_request(verb: Ack | End, reply: object) -> None:
    (line,) = logged_by(verb, reply)

    outcome = verb.record.outcome if isinstance(verb, Ack) else verb.records[0].outcome
    assert {name: line[name] for name in ("event", "vin", "seq", "request_id", "outcome", "reason")} == {
        "event": "entry ended",
        "vin": VIN,
        "seq": SEQ,
        "request_id": "task_a_1",
        "outcome": outcome.value,
        "reason": "why",
    }


@pytest.mark.parametrize(
    ("verb", "reply"),
    [
        pytest.param(End((ended(Outcome.EXPIRED),)), EndReply((Outcome.DELIVERED,), NONE), id="delivered before"),
        pytest.param(End((ended(Outcome.EXPIRED),)), EndReply((None,), NONE), id="in flight"),
        pytest.param(Ack(ended(Outcome.FAILED)), AckReply("known", None, None, NONE), id="ended before"),
    ],
)
def test_a_normal_outcome_is_not_logged(verb: Verb, reply: object) -> None:
    assert logged_by(verb, reply) == []


@pytest.mark.parametrize(
    ("word", "passed_over", "counted"),
    [
        pytest.param("ended", False, (1, 0), id="acknowledged"),
        pytest.param("unknown", False, (1, 0), id="acknowledged late, and superseded"),
        pytest.param("known", False, (0, 0), id="acknowledged before"),
        pytest.param("undone", False, (0, 0), id="rewound since"),
        pytest.param("ended", True, (0, 1), id="skipped"),
        pytest.param("sent", True, (0, 0), id="not skipped yet"),
    ],
)
def test_outcomes_of_compacted_messages_are_counted(word: str, passed_over: bool, counted: tuple[int, int]) -> None:
    def counts() -> list[float]:
        names = ("manifold_dispatcher_ecq_delivered_total", "manifold_dispatcher_ecq_passed_over_total")
        return [REGISTRY.get_sample_value(name) or 0.0 for name in names]

    before = counts()
    logged_by(Acknowledge(EcqAck(VIN, SEQ, NOW, passed_over=passed_over)), EcqAckReply(word, NOW - 5, 1, 0, NONE))
    assert tuple(after - b for after, b in zip(counts(), before, strict=True)) == counted


def test_an_expired_compacted_message_counts_as_expired_and_not_as_passed_over() -> None:
    def counts() -> tuple[float, float]:
        passed_over = REGISTRY.get_sample_value("manifold_dispatcher_ecq_passed_over_total")
        expired = REGISTRY.get_sample_value("manifold_dispatcher_outcomes_total", {"outcome": "expired"})
        return passed_over or 0.0, expired or 0.0

    before = counts()
    record = EcqAck(VIN, SEQ, NOW, passed_over=True, outcome=Outcome.EXPIRED)
    (line,) = logged_by(Acknowledge(record), EcqAckReply("ended", NOW - 5, 1, 0, NONE))

    assert tuple(after - b for after, b in zip(counts(), before, strict=True)) == (0, 1)
    assert line["event"] == "message of a compacted queue expired"


def test_deliveries_are_logged_only_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    ack = Ack(ended(Outcome.DELIVERED), "task_a_1")
    reply = AckReply("ended", NOW - 5, 1, CLAIMED._replace(attempts=2))
    assert logged_by(ack, reply) == []

    with caplog.at_level(logging.DEBUG):
        lines = logged_by(ack, reply) + logged_by(Claim(), CLAIMED)

    assert [line["event"] for line in lines] == ["end of entry requested", "entry claimed", "entry claimed"]
    assert all((line["vin"], line["seq"], line["request_id"]) == (VIN, SEQ, "task_a_1") for line in lines)
