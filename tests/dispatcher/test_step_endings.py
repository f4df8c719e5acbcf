"""Acknowledgements, releases, and entries that end."""

from msgspec.structs import replace

from dispatcher._events import Effect, Event, Ignore, Load, Watch, Withheld
from dispatcher._step import OwnerState, step
from manifold.contracts.events import PresenceSign
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.queues.verbs.claims import Claim, Release, ReleaseReason, ReleaseReply, UpdatePresence, UpdatePresenceReply
from manifold.queues.verbs.ends import Ack, AckReply, End, EndReply
from tests.dispatcher.steps import (
    ACK,
    ACKED,
    BUSY,
    CLAIMED,
    FAILED,
    HELD,
    IDLE,
    MUST_END,
    NEWER,
    NEXT,
    NONE,
    NOT_ACKNOWLEDGED,
    NOW,
    OLDER,
    OPEN_CLAIM,
    SENT,
    SEQ,
    THREE,
    VIN,
    Row,
    answered,
    is_mine,
    table,
    watch,
)

ENDS = End(
    (
        OutcomeRecord(VIN, OLDER, Outcome.EXPIRED, NOW, attempts=0, reason="its retention has passed"),
        OutcomeRecord(VIN, SEQ, Outcome.CANCELLED, NOW, attempts=2, reason=NOT_ACKNOWLEDGED),
    )
)
FAILS = Ack(replace(FAILED.record, attempts=3, reason="not acknowledged after 3 attempts"))

WHY = "campaign c is paused"
WITHHELD = Withheld(SEQ, NOW - 5, NOW, WHY)
WITHDRAWN = Ack(OutcomeRecord(VIN, SEQ, Outcome.WITHDRAWN, NOW, attempts=0, reason=WHY))
AGAIN = replace(SENT, open_claim=replace(OPEN_CLAIM, sent=True, attempts=3))
TWICE = Ack(replace(WITHDRAWN.record, attempts=2))

ROWS: list[Row] = [
    # Withdrawn entries.
    ("a brake that was put on since the claim withdraws the entry", SENT, WITHHELD, IDLE, [WITHDRAWN]),
    ("an entry that was published before is withdrawn with its attempts", AGAIN, WITHHELD, IDLE, [TWICE]),
    (
        "a brake says nothing of another claim",
        SENT,
        replace(WITHHELD, claimed_ms=NOW - 9),
        SENT,
        [Ignore("event of a closed claim")],
    ),
    (
        "the entry behind a withdrawn one is claimed",
        IDLE,
        answered(WITHDRAWN, AckReply("ended", NOW - 5, 1, NEXT)),
        is_mine(NEXT),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
    (
        "an entry whose publish may be under way is not withdrawn yet, and is checked again later",
        IDLE,
        answered(WITHDRAWN, AckReply("sent", None, None, HELD)),
        IDLE,
        [watch(HELD)],
    ),
    # Acknowledgements.
    ("an acknowledgement ends its entry", BUSY, ACKED, BUSY, [ACK]),
    (
        "the vehicle's reason is recorded",
        BUSY,
        replace(ACKED, reason="no space left"),
        BUSY,
        [Ack(replace(ACK.record, reason="no space left"), "task_a_1")],
    ),
    (
        "an acknowledgement without a seq is foreign",
        BUSY,
        replace(ACKED, seq=None),
        BUSY,
        [Ignore("an acknowledgement of a message that is not its own")],
    ),
    (
        "an acknowledgement on the topic of another vehicle proves nothing",
        BUSY,
        replace(ACKED, topic="agent/VIN-2/proxy/request/task_a_1"),
        BUSY,
        [Ignore("an acknowledgement of a message that is not its own")],
    ),
    (
        "after a delivery the next entry is claimed before the broker confirms the first",
        BUSY,
        answered(ACK, AckReply("ended", NOW - 5, 1, NEXT)),
        is_mine(NEXT),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
    (
        "an acknowledgement after the release, without a next entry",
        IDLE,
        answered(ACK, AckReply("ended", None, 1, NONE)),
        IDLE,
        [],
    ),
    (
        "a repeated acknowledgement finds the entry in flight now",
        IDLE,
        answered(ACK, AckReply("known", None, None, HELD)),
        IDLE,
        [watch(HELD)],
    ),
    (
        "a late acknowledgement leaves the newer entry in hand",
        BUSY,
        answered(Ack(replace(ACK.record, seq=OLDER), "task_a_1"), AckReply("known", None, None, HELD)),
        BUSY,
        [watch(HELD)],
    ),
    # Releases.
    (
        "released by its deadline: claimed again",
        IDLE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, then_claim=True), ReleaseReply("released", attempts=2)),
        IDLE,
        [Claim()],
    ),
    (
        "another replica handled the deadline first: ask again",
        IDLE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, then_claim=True), ReleaseReply("stale")),
        IDLE,
        [Claim()],
    ),
    (
        "an absent vehicle with a live session is checked when the session ends",
        IDLE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, then_claim=True), ReleaseReply("early", deadline_ms=NOW + 300_000)),
        IDLE,
        [Watch(NOW + 300_000)],
    ),
    (
        "released without a subscriber: nothing until the next heartbeat",
        IDLE,
        answered(Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5), ReleaseReply("released")),
        IDLE,
        [],
    ),
    (
        "released without a subscriber after a heartbeat: claimed as if it came now",
        IDLE,
        answered(Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5, then_claim=True), ReleaseReply("released")),
        IDLE,
        [UpdatePresence(PresenceSign(), claim=True)],
    ),
    (
        "a release of an entry no longer in flight changes nothing",
        IDLE,
        answered(Release(SEQ, ReleaseReason.CUT, NOW - 5, then_claim=True), ReleaseReply("stale")),
        IDLE,
        [Ignore("released too late: it is not in flight")],
    ),
    (
        "an unsent claim was replaced: the entry in flight now may be overdue too",
        BUSY,
        answered(Release(SEQ, ReleaseReason.UNSENT, NOW - 5, then_claim=True), ReleaseReply("stale")),
        IDLE,
        [Claim()],
    ),
    (
        "released unsent: claimed again without the old claim in hand",
        BUSY,
        answered(Release(SEQ, ReleaseReason.UNSENT, NOW - 5, then_claim=True), ReleaseReply("released", attempts=0)),
        IDLE,
        [Claim()],
    ),
    # Attempts.
    (
        "the last attempt's deadline fails the entry",
        THREE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, then_claim=True), ReleaseReply("released", attempts=3)),
        THREE,
        [FAILS],
    ),
    (
        "an entry with attempts left is sent again",
        THREE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, then_claim=True), ReleaseReply("released", attempts=2)),
        THREE,
        [Claim()],
    ),
    (
        "a claim beyond the last attempt fails the entry instead of publishing it",
        THREE,
        answered(UpdatePresence(PresenceSign(), True), UpdatePresenceReply("noted", SEQ, CLAIMED._replace(attempts=4))),
        THREE,
        [FAILS],
    ),
    (
        "after a failure the next entry is claimed",
        THREE,
        answered(FAILS, AckReply("ended", None, 3, NEXT)),
        replace(THREE, open_claim=is_mine(NEXT).open_claim),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
    # Entries that must no longer be sent.
    (
        "an expired or cancelled entry is ended and never published",
        IDLE,
        answered(UpdatePresence(PresenceSign(), True), UpdatePresenceReply("noted", None, MUST_END)),
        IDLE,
        [ENDS],
    ),
    (
        "the next entry follows ended ones",
        IDLE,
        answered(ENDS, EndReply((Outcome.EXPIRED, Outcome.CANCELLED), NEXT)),
        is_mine(NEXT),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
]


@table(ROWS)
def test_step(before: OwnerState, event: Event, after: OwnerState, effects: list[Effect]) -> None:
    assert step(before, event) == (after, effects)
