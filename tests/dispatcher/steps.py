"""States, events and replies about one vehicle, for the tests of `step`."""

import dataclasses

import pytest
from msgspec.structs import replace

from dispatcher._events import Answered, Effect, Event, Loaded, Verb, Watch
from dispatcher._policy import DispatchPolicy
from dispatcher._step import OpenClaim, OwnerState
from manifold.contracts.events import Acked, Connected, DeliveryDropped, Disconnected, Subscribed
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.queues.verbs.claims import ClaimReply, ClaimWord, MustEnd
from manifold.queues.verbs.ends import Ack

Row = tuple[str, OwnerState, Event, OwnerState, list[Effect]]

VIN = Owner("VIN-1")
NOW = 1_000_000
STEADY = 7_000  # the same instant on the monotonic clock
SEND_BY = STEADY + 30_000  # for entries claimed now
OLDER, SEQ, NEWER = 41, 42, 43
RULES = DispatchPolicy("agent", (30_000, 60_000, 120_000), max_attempts=0, dispatch_on_connect=False, dispatch_on_subscribe=False)

IDLE = OwnerState(RULES, VIN)
THREE = OwnerState(dataclasses.replace(RULES, max_attempts=3), VIN)
EAGER = OwnerState(dataclasses.replace(RULES, dispatch_on_connect=True, dispatch_on_subscribe=True), VIN)
OPEN_CLAIM = OpenClaim(SEQ, NOW - 5, SEND_BY - 5)
BUSY = replace(IDLE, open_claim=OPEN_CLAIM)
SENT = replace(IDLE, open_claim=replace(OPEN_CLAIM, sent=True))
LOADED = Loaded(SEQ, NOW - 5, "task_a_1", "d1", b"hello")

NONE, ABSENT = ClaimReply(ClaimWord.NONE), ClaimReply(ClaimWord.ABSENT)
CLAIMED = ClaimReply(ClaimWord.CLAIMED, SEQ, 1, NOW + 30_000)
NEXT = ClaimReply(ClaimWord.CLAIMED, NEWER, 1, NOW + 30_000)
HELD = ClaimReply(ClaimWord.BUSY, SEQ, 1, NOW + 20_000)
MUST_END = ClaimReply(ClaimWord.MUST_END, must_end=(MustEnd(OLDER, Outcome.EXPIRED, 0), MustEnd(SEQ, Outcome.CANCELLED, 2)))
NOT_ACKNOWLEDGED = "cancelled while it was in flight, and not acknowledged"
OVERDUE = ClaimReply(ClaimWord.BUSY, SEQ, 2, NOW)
CLEAN, RESUMED = Connected(VIN, NOW, True, 0), Connected(VIN, NOW, False, 300)
LEFT = Disconnected(VIN, NOW, NOW - 9, None, "tcp_closed")
DROPPED = DeliveryDropped(VIN, NOW, SEQ, "queue_full")
LISTENS = Subscribed(VIN, NOW, "agent/VIN-1/proxy/request/+", True)
ACKED = Acked(VIN, NOW, "agent/VIN-1/proxy/request/task_a_1", SEQ, NOW - 4, None)
FAILED = Ack(OutcomeRecord(VIN, SEQ, Outcome.FAILED, NOW))
ACK = Ack(OutcomeRecord(VIN, SEQ, Outcome.DELIVERED, NOW, NOW - 4), "task_a_1")


def table(rows: list[Row]) -> pytest.MarkDecorator:
    """Parametrize a test with rows: name, state before, event, state after, effects."""
    names = ("before", "event", "after", "effects")
    return pytest.mark.parametrize(names, [row[1:] for row in rows], ids=[row[0] for row in rows])


def answered(verb: Verb, reply: object, *, repeated: bool = False) -> Answered:
    return Answered(verb, reply, NOW, STEADY, repeated)


def watch(claim: ClaimReply) -> Watch:
    return Watch(RULES.recheck_at_ms(VIN, claim.seq, claim.attempts, claim.deadline_ms))


def is_mine(claim: ClaimReply) -> OwnerState:
    return replace(IDLE, open_claim=OpenClaim(claim.seq, NOW, SEND_BY, attempts=claim.attempts))
