"""Claims and their effects up to the broker."""

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as altered

from dispatcher._events import Effect, Event, Ignore, Load, Missing, NotPublished, Publish, Published, PublishLost, Unsendable
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
        "a claimed entry is watched, then loaded",
        IDLE,
        answered(Claim(), CLAIMED),
        is_mine(CLAIMED),
        [watch(CLAIMED), Load(SEQ, NOW)],
    ),
    ("an absent vehicle is left alone", IDLE, answered(Claim(), ABSENT), IDLE, []),
    ("an entry found in flight is watched: its claimant may be dead", IDLE, answered(Claim(), HELD), IDLE, [watch(HELD)]),
    (
        "an overdue entry is released with reason deadline",
        IDLE,
        answered(Claim(), OVERDUE),
        IDLE,
        [Release(SEQ, ReleaseReason.DEADLINE, then_claim=True)],
    ),
    (
        "a claim with a lost reply is continued",
        IDLE,
        answered(Claim(), HELD._replace(deadline_ms=NOW + 30_000), repeated=True),
        is_mine(HELD._replace(deadline_ms=NOW + 30_000)),
        [watch(HELD._replace(deadline_ms=NOW + 30_000)), Load(SEQ, NOW)],
    ),
    (
        "a foreign claim is not continued when a verb is repeated",
        IDLE,
        answered(Claim(), HELD, repeated=True),
        IDLE,
        [watch(HELD)],
    ),
    (
        "an entry overdue while loading counts no attempt",
        BUSY,
        answered(Claim(), OVERDUE),
        BUSY,
        [Release(SEQ, ReleaseReason.UNSENT, NOW - 5, then_claim=True)],
    ),
    (
        "an entry overdue after its publish counts an attempt",
        SENT,
        answered(Claim(), OVERDUE),
        SENT,
        [Release(SEQ, ReleaseReason.DEADLINE, then_claim=True)],
    ),
    # Publishing.
    ("a loaded entry is published", BUSY, LOADED, SENT, [Publish(LOADED, OPEN_CLAIM.send_by)]),
    (
        "the claim carries the maximum packet size",
        IDLE,
        answered(Claim(), CLAIMED._replace(max_packet_bytes=256)),
        replace(IDLE, open_claim=OpenClaim(SEQ, NOW, SEND_BY, max_packet_bytes=256)),
        [watch(CLAIMED), Load(SEQ, NOW)],
    ),
    (
        "a loaded entry is published with the maximum packet size",
        replace(IDLE, open_claim=replace(OPEN_CLAIM, max_packet_bytes=256)),
        LOADED,
        replace(IDLE, open_claim=replace(OPEN_CLAIM, max_packet_bytes=256, sent=True)),
        [Publish(LOADED, OPEN_CLAIM.send_by, 256)],
    ),
    (
        "a later attempt may be acknowledged later, and not be published later",
        IDLE,
        answered(Claim(), LATER),
        replace(IDLE, open_claim=OpenClaim(SEQ, NOW, SEND_BY, attempts=LATER.attempts)),
        [watch(LATER), Load(SEQ, NOW)],
    ),
    (
        "an entry that must not be overtaken yet does not fail, and is checked again later",
        BUSY,
        answered(FAILED, AckReply("sent", None, None, HELD)),
        IDLE,
        [watch(HELD)],
    ),
    (
        "an entry that must not be overtaken yet is not parked",
        IDLE,
        answered(Park(SEQ, "d1", NOW - 5), HELD),
        IDLE,
        [watch(HELD)],
    ),
    (
        "an entry loaded after the release of its claim is not published",
        IDLE,
        LOADED,
        IDLE,
        [Ignore("event of a closed claim")],
    ),
    (
        "an entry loaded for an older claim is not published",
        BUSY,
        altered(LOADED, claimed_ms=NOW - 50_000),
        BUSY,
        [Ignore("event of a closed claim")],
    ),
    ("the broker's PUBACK ends the claim in hand", BUSY, Published(SEQ, NOW - 5, 0), IDLE, []),
    (
        "without a subscriber the claim is released until the next heartbeat",
        BUSY,
        Published(SEQ, NOW - 5, 16),
        IDLE,
        [Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5)],
    ),
    (
        "without a subscriber but with a later heartbeat the entry is retried",
        replace(IDLE, open_claim=replace(OPEN_CLAIM, heard=True)),
        Published(SEQ, NOW - 5, 16),
        IDLE,
        [Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5, then_claim=True)],
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
        "a publish lost with the connection is released and claimed again without an attempt",
        BUSY,
        PublishLost(SEQ, NOW - 5),
        IDLE,
        [Release(SEQ, ReleaseReason.CUT, NOW - 5, then_claim=True)],
    ),
    (
        "a publish that broke the connection alone again waits for its deadline and counts an attempt",
        BUSY,
        PublishLost(SEQ, NOW - 5, alone=True),
        IDLE,
        [Ignore("suspected of breaking the connection; retried at the deadline")],
    ),
    (
        "a publish that the broker refuses for its size fails with the reason",
        SENT,
        Unsendable(SEQ, NOW - 5, NOW, "too large"),
        IDLE,
        [Ack(replace(FAILED.record, reason="too large"))],
    ),
    (
        "a publish too late for its deadline counts no attempt",
        SENT,
        NotPublished(SEQ, NOW - 5),
        IDLE,
        [Release(SEQ, ReleaseReason.UNSENT, NOW - 5, then_claim=True)],
    ),
    ("missing data parks the entry", BUSY, Missing(SEQ, NOW - 5, "d1"), IDLE, [Park(SEQ, "d1", NOW - 5)]),
    (
        "the next entry follows a parked one",
        IDLE,
        answered(Park(SEQ, "d1"), NEXT),
        is_mine(NEXT),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
    ("parking an entry released meanwhile does nothing", IDLE, answered(Park(SEQ, "d1"), NONE), IDLE, []),
]


@table(ROWS)
def test_step(before: OwnerState, event: Event, after: OwnerState, effects: list[Effect]) -> None:
    assert step(before, event) == (after, effects)


def test_an_answer_that_does_not_fit_its_verb_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="is not an answer to"):
        step(IDLE, answered(Claim(), AckReply("ended", None, None, NONE)))
