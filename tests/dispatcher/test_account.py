"""What a round says of itself: every line that concerns a delivery names the vehicle, the seq and the request."""

import logging

import pytest
import structlog
from structlog.testing import capture_logs

from contracts.names import Owner
from contracts.outcomes import Outcome, OutcomeRecord
from dispatcher import _account
from dispatcher._account import account_answers, account_outcomes
from dispatcher._vocabulary import Ack, Answered, Claim, Heard, Park, Release, Touch, Verb
from queues import AckReply, ClaimWord, ReleaseReason, ReleaseReply, TouchReply
from queues import Claim as ClaimReply

VIN, SEQ, NOW = Owner("VIN-1"), 42, 1_000_000
NONE = ClaimReply(ClaimWord.NONE)
CLAIMED = ClaimReply(ClaimWord.CLAIMED, SEQ, 2, NOW)


@pytest.fixture(autouse=True)
def as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow, where another test has loaded it, leaves every logger of this process with its own filters, or disabled."""
    structlog.reset_defaults()
    monkeypatch.setattr(_account, "log", structlog.get_logger(_account.__name__))
    monkeypatch.setattr(logging.getLogger(_account.__name__), "disabled", False)


def said(verb: Verb, reply: object) -> list[dict[str, object]]:
    with capture_logs() as lines:
        account_answers([(VIN, Answered(verb, reply, NOW))], {SEQ: "task_a_1"}.get)
    return [dict(line) for line in lines]


@pytest.mark.parametrize(
    ("verb", "reply", "event"),
    [
        pytest.param(Release(SEQ, ReleaseReason.DEADLINE), ReleaseReply("released", 1), "released", id="by its deadline"),
        pytest.param(Touch(Heard(), True), TouchReply("noted", SEQ, NONE), "released", id="with its session"),
        pytest.param(Park(SEQ, "d1"), ClaimReply(ClaimWord.IDLE), "parked", id="for want of data"),
    ],
)
def test_what_goes_another_way_gets_a_line_with_vehicle_seq_and_request(verb: Verb, reply: object, event: str) -> None:
    (line,) = said(verb, reply)

    assert (line["event"], line["vin"], line["seq"], line["request_id"]) == (event, VIN, SEQ, "task_a_1")


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.DELIVERED])
def test_an_entry_that_ends_otherwise_gets_a_line_with_vehicle_seq_and_request(outcome: Outcome) -> None:
    with capture_logs() as lines:
        account_outcomes([OutcomeRecord(VIN, SEQ, outcome, NOW, reason="why")], {SEQ: "task_a_1"}.get)

    (line,) = lines
    assert {name: line[name] for name in ("event", "vin", "seq", "request_id", "outcome", "reason")} == {
        "event": "ended",
        "vin": VIN,
        "seq": SEQ,
        "request_id": "task_a_1",
        "outcome": outcome.value,
        "reason": "why",
    }


def test_a_delivery_is_told_only_to_who_asks_for_every_line(caplog: pytest.LogCaptureFixture) -> None:
    ack = Ack(SEQ, Outcome.DELIVERED, NOW, "task_a_1")
    reply = AckReply("ended", NOW - 5, 1, CLAIMED)
    assert said(ack, reply) == []

    with caplog.at_level(logging.DEBUG):
        lines = said(ack, reply) + said(Claim(), CLAIMED)

    assert [line["event"] for line in lines] == ["acknowledged", "claimed", "claimed"]
    assert all((line["vin"], line["seq"], line["request_id"]) == (VIN, SEQ, "task_a_1") for line in lines)
