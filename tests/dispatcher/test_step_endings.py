"""Acknowledgements, releases, and entries that end."""

from msgspec.structs import replace

from dispatcher._effects import Effect, Ignore, Load, Watch
from dispatcher._events import Event
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

ROWS: list[Row] = [
    # Acknowledgements.
    ("an acknowledgement ends its entry", BUSY, ACKED, BUSY, [ACK]),
    (
        "what the vehicle says goes with it",
        BUSY,
        replace(ACKED, reason="no space left"),
        BUSY,
        [Ack(replace(ACK.record, reason="no space left"), "task_a_1")],
    ),
    (
        "an acknowledgement without a seq is somebody else's",
        BUSY,
        replace(ACKED, seq=None),
        BUSY,
        [Ignore("an acknowledgement of a message that is not its own")],
    ),
    (
        "a vehicle that listens to another one's topic proves nothing",
        BUSY,
        replace(ACKED, topic="agent/VIN-2/proxy/request/task_a_1"),
        BUSY,
        [Ignore("an acknowledgement of a message that is not its own")],
    ),
    (
        "delivered: the next one is claimed, before the broker has confirmed the first",
        BUSY,
        answered(ACK, AckReply("ended", NOW - 5, 1, NEXT)),
        is_mine(NEXT),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
    (
        "an acknowledgement after the release, and nothing to follow",
        IDLE,
        answered(ACK, AckReply("ended", None, 1, NONE)),
        IDLE,
        [],
    ),
    (
        "an acknowledgement that comes again finds what is in flight now",
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
        answered(Release(SEQ, ReleaseReason.DEADLINE, again=True), ReleaseReply("released", attempts=2)),
        IDLE,
        [Claim()],
    ),
    (
        "another replica was faster with the deadline: look again",
        IDLE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, again=True), ReleaseReply("stale")),
        IDLE,
        [Claim()],
    ),
    (
        "the vehicle is away and its session lives: the broker holds the message, look when the session ends",
        IDLE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, again=True), ReleaseReply("early", deadline_ms=NOW + 300_000)),
        IDLE,
        [Watch(NOW + 300_000)],
    ),
    (
        "released for want of a subscriber: nothing until the next sign",
        IDLE,
        answered(Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5), ReleaseReply("released")),
        IDLE,
        [],
    ),
    (
        "released for want of a subscriber, after a sign: as if it came now",
        IDLE,
        answered(Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5, again=True), ReleaseReply("released")),
        IDLE,
        [UpdatePresence(PresenceSign(), claim=True)],
    ),
    (
        "a release that names what is not in flight any more changes nothing",
        IDLE,
        answered(Release(SEQ, ReleaseReason.CUT, NOW - 5, again=True), ReleaseReply("stale")),
        IDLE,
        [Ignore("released too late: it is not in flight")],
    ),
    (
        "what was never sent is not that claim any more: what is in flight now may be overdue, too",
        BUSY,
        answered(Release(SEQ, ReleaseReason.UNSENT, NOW - 5, again=True), ReleaseReply("stale")),
        IDLE,
        [Claim()],
    ),
    (
        "released because it was never sent: claimed again, with nothing of the old claim in hand",
        BUSY,
        answered(Release(SEQ, ReleaseReason.UNSENT, NOW - 5, again=True), ReleaseReply("released", attempts=0)),
        IDLE,
        [Claim()],
    ),
    # Attempts.
    (
        "the last attempt's deadline fails the entry",
        THREE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, again=True), ReleaseReply("released", attempts=3)),
        THREE,
        [FAILS],
    ),
    (
        "an attempt is left: it goes again",
        THREE,
        answered(Release(SEQ, ReleaseReason.DEADLINE, again=True), ReleaseReply("released", attempts=2)),
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
        "after a failure the next one goes",
        THREE,
        answered(FAILS, AckReply("ended", None, 3, NEXT)),
        replace(THREE, open_claim=is_mine(NEXT).open_claim),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
    # What must not be sent any more.
    (
        "what has expired, or was cancelled in flight, is ended, and never published",
        IDLE,
        answered(UpdatePresence(PresenceSign(), True), UpdatePresenceReply("noted", None, MUST_END)),
        IDLE,
        [ENDS],
    ),
    (
        "the next one follows what was ended",
        IDLE,
        answered(ENDS, EndReply((Outcome.EXPIRED, Outcome.CANCELLED), NEXT)),
        is_mine(NEXT),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
]


@table(ROWS)
def test_step(before: OwnerState, event: Event, after: OwnerState, effects: list[Effect]) -> None:
    assert step(before, event) == (after, effects)
