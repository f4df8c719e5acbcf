"""Claims, and what becomes of them on their way to the broker."""

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as altered

from dispatcher._effects import Effect, Ignore, Load, Publish
from dispatcher._events import Event, Missing, NotPublished, Published, PublishLost, Unsendable
from dispatcher._step import OpenClaim, OwnerState, step
from manifold.queues.verbs.claims import Claim, Park, Release, ReleaseReason
from manifold.queues.verbs.ends import Ack, AckReply
from tests.dispatcher.steps import (
    ABSENT,
    BUSY,
    CLAIMED,
    FAILED,
    HELD,
    IDLE,
    LOADED,
    NEWER,
    NEXT,
    NONE,
    NOW,
    OPEN_CLAIM,
    OVERDUE,
    SEND_BY,
    SENT,
    SEQ,
    Row,
    answered,
    is_mine,
    table,
    watch,
)

LATER = CLAIMED._replace(attempts=3, deadline_ms=NOW + 120_000)

ROWS: list[Row] = [
    # Claims.
    (
        "what is claimed is watched, then loaded",
        IDLE,
        answered(Claim(), CLAIMED),
        is_mine(CLAIMED),
        [watch(CLAIMED), Load(SEQ, NOW)],
    ),
    ("an absent vehicle is left alone", IDLE, answered(Claim(), ABSENT), IDLE, []),
    ("what is found in flight is watched: whoever claimed it may be dead", IDLE, answered(Claim(), HELD), IDLE, [watch(HELD)]),
    (
        "what is found overdue is released, and only because it is overdue",
        IDLE,
        answered(Claim(), OVERDUE),
        IDLE,
        [Release(SEQ, ReleaseReason.DEADLINE, again=True)],
    ),
    (
        "a claim whose answer was lost is taken up",
        IDLE,
        answered(Claim(), HELD._replace(deadline_ms=NOW + 30_000), repeated=True),
        is_mine(HELD._replace(deadline_ms=NOW + 30_000)),
        [watch(HELD._replace(deadline_ms=NOW + 30_000)), Load(SEQ, NOW)],
    ),
    (
        "another's claim is not taken up when a verb is repeated",
        IDLE,
        answered(Claim(), HELD, repeated=True),
        IDLE,
        [watch(HELD)],
    ),
    (
        "what is found overdue while it is still being loaded was no attempt",
        BUSY,
        answered(Claim(), OVERDUE),
        BUSY,
        [Release(SEQ, ReleaseReason.UNSENT, NOW - 5, again=True)],
    ),
    (
        "what is found overdue after it was published was one",
        SENT,
        answered(Claim(), OVERDUE),
        SENT,
        [Release(SEQ, ReleaseReason.DEADLINE, again=True)],
    ),
    # Publishing.
    ("what is loaded is published", BUSY, LOADED, SENT, [Publish(LOADED, OPEN_CLAIM.send_by)]),
    (
        "the claim says what the vehicle takes",
        IDLE,
        answered(Claim(), CLAIMED._replace(takes=256)),
        replace(IDLE, open_claim=OpenClaim(SEQ, NOW, SEND_BY, takes=256)),
        [watch(CLAIMED), Load(SEQ, NOW)],
    ),
    (
        "and what is loaded is published for one that takes so much",
        replace(IDLE, open_claim=replace(OPEN_CLAIM, takes=256)),
        LOADED,
        replace(IDLE, open_claim=replace(OPEN_CLAIM, takes=256, sent=True)),
        [Publish(LOADED, OPEN_CLAIM.send_by, 256)],
    ),
    (
        "a later attempt may be acknowledged later, and not be published later",
        IDLE,
        answered(Claim(), LATER),
        replace(IDLE, open_claim=OpenClaim(SEQ, NOW, SEND_BY)),
        [watch(LATER), Load(SEQ, NOW)],
    ),
    (
        "an entry that must not be overtaken yet does not fail, and is looked at when that is over",
        BUSY,
        answered(FAILED, AckReply("sent", None, None, HELD)),
        IDLE,
        [watch(HELD)],
    ),
    ("nor is it parked", IDLE, answered(Park(SEQ, "d1", NOW - 5), HELD), IDLE, [watch(HELD)]),
    (
        "what is loaded after its claim was released is not published",
        IDLE,
        LOADED,
        IDLE,
        [Ignore("event of a closed claim")],
    ),
    (
        "what is loaded for an older claim of the same entry is not published",
        BUSY,
        altered(LOADED, claimed_ms=NOW - 50_000),
        BUSY,
        [Ignore("event of a closed claim")],
    ),
    ("the broker's word ends the claim in hand", BUSY, Published(SEQ, NOW - 5, 0), IDLE, []),
    (
        "no subscriber releases that claim, and waits for a sign",
        BUSY,
        Published(SEQ, NOW - 5, 16),
        IDLE,
        [Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5)],
    ),
    (
        "no subscriber, but a sign came since: it may have subscribed by now",
        replace(IDLE, open_claim=replace(OPEN_CLAIM, heard=True)),
        Published(SEQ, NOW - 5, 16),
        IDLE,
        [Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5, again=True)],
    ),
    (
        "a late PUBACK 16 never touches a newer entry",
        replace(IDLE, open_claim=OpenClaim(NEWER, NOW, NOW + 30_000)),
        Published(SEQ, NOW - 5, 16),
        replace(IDLE, open_claim=OpenClaim(NEWER, NOW, NOW + 30_000)),
        [Ignore("event of a closed claim")],
    ),
    (
        "a late PUBACK 16 never touches a newer claim of the same entry",
        BUSY,
        Published(SEQ, NOW - 40_000, 16),
        BUSY,
        [Ignore("event of a closed claim")],
    ),
    (
        "a refusal by the broker waits for the deadline",
        BUSY,
        Published(SEQ, NOW - 5, 0x97),
        IDLE,
        [Ignore("rejected by the broker; retried at the deadline")],
    ),
    (
        "a publish lost with the connection is released by name and claimed again, and was no attempt",
        BUSY,
        PublishLost(SEQ, NOW - 5),
        IDLE,
        [Release(SEQ, ReleaseReason.CUT, NOW - 5, again=True)],
    ),
    (
        "a publish for which alone the connection broke once more waits for its deadline, and was an attempt",
        BUSY,
        PublishLost(SEQ, NOW - 5, alone=True),
        IDLE,
        [Ignore("suspected of breaking the connection; retried at the deadline")],
    ),
    (
        "a publish that the broker does not take fails with its reason",
        SENT,
        Unsendable(SEQ, NOW - 5, NOW, "too large"),
        IDLE,
        [Ack(replace(FAILED.record, reason="too large"))],
    ),
    (
        "a publish that came too late for its deadline was no attempt",
        SENT,
        NotPublished(SEQ, NOW - 5),
        IDLE,
        [Release(SEQ, ReleaseReason.UNSENT, NOW - 5, again=True)],
    ),
    ("data that nobody has parks the entry", BUSY, Missing(SEQ, NOW - 5, "d1"), IDLE, [Park(SEQ, "d1", NOW - 5)]),
    ("the next one follows a parked one", IDLE, answered(Park(SEQ, "d1"), NEXT), is_mine(NEXT), [watch(NEXT), Load(NEWER, NOW)]),
    ("a parked one that was released meanwhile leaves nothing to do", IDLE, answered(Park(SEQ, "d1"), NONE), IDLE, []),
]


@table(ROWS)
def test_step(before: OwnerState, event: Event, after: OwnerState, effects: list[Effect]) -> None:
    assert step(before, event) == (after, effects)


def test_an_answer_that_does_not_fit_its_verb_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="is not an answer to"):
        step(IDLE, answered(Claim(), AckReply("ended", None, None, NONE)))
