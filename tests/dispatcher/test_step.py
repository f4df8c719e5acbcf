"""`step`, race by race. Each row: what this process has in hand, what happens, and what follows."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as altered

from contracts.events import Acked, Connected, DeliveryDropped, Disconnected, Subscribed
from contracts.names import Owner
from contracts.outcomes import Outcome, OutcomeRecord
from dispatcher._rules import Rules
from dispatcher._step import Hand, State, step
from dispatcher._vocabulary import (
    Ack,
    Answered,
    Claim,
    DeadlinePassed,
    Effect,
    End,
    Event,
    Heard,
    Ignore,
    Load,
    Loaded,
    Missing,
    NotPublished,
    Park,
    Publish,
    Published,
    PublishLost,
    RecordOutcome,
    Release,
    Touch,
    Verb,
    Watch,
    Woken,
)
from queues import AckReply, ClaimWord, EndReply, Over, ReleaseReason, ReleaseReply, TouchReply
from queues import Claim as ClaimReply

Row = tuple[str, State, Event, State, list[Effect]]

VIN = Owner("VIN-1")
NOW = 1_000_000
OLDER, SEQ, NEWER = 41, 42, 43
RULES = Rules("agent", (30_000, 60_000, 120_000), max_attempts=0, dispatch_on_connect=False, dispatch_on_subscribe=False)
THREE = replace(RULES, max_attempts=3)
EAGER = replace(RULES, dispatch_on_connect=True, dispatch_on_subscribe=True)

IDLE = State(RULES, VIN)
HAND = Hand(SEQ, NOW - 5, NOW + 29_995)
BUSY = IDLE._replace(hand=HAND)
LOADED = Loaded(SEQ, NOW - 5, "task_a_1", "d1", b"hello")

NONE, ABSENT = ClaimReply(ClaimWord.NONE), ClaimReply(ClaimWord.ABSENT)
CLAIMED = ClaimReply(ClaimWord.CLAIMED, SEQ, 1, NOW + 30_000)
NEXT = ClaimReply(ClaimWord.CLAIMED, NEWER, 1, NOW + 30_000)
HELD = ClaimReply(ClaimWord.BUSY, SEQ, 1, NOW + 20_000)
OVER = ClaimReply(ClaimWord.OVER, over=(Over(OLDER, Outcome.EXPIRED, 0), Over(SEQ, Outcome.CANCELLED, 2)))
NOT_ACKNOWLEDGED = "cancelled while it was in flight, and not acknowledged"
OVERDUE = ClaimReply(ClaimWord.BUSY, SEQ, 2, NOW)
CLEAN, RESUMED = Connected(VIN, NOW, True, 0), Connected(VIN, NOW, False, 300)
LEFT = Disconnected(VIN, NOW, NOW - 9, None, "tcp_closed")
LISTENS = Subscribed(VIN, NOW, "agent/VIN-1/proxy/request/+", True)
ACKED = Acked(VIN, NOW, "agent/VIN-1/proxy/request/task_a_1", SEQ, NOW - 4, None)
ACK = Ack(SEQ, Outcome.DELIVERED, NOW, "task_a_1", NOW - 4)


def answered(verb: Verb, reply: object, *, repeated: bool = False) -> Answered:
    return Answered(verb, reply, NOW, repeated)


def watch(claim: ClaimReply) -> Watch:
    return Watch(RULES.look_at_ms(VIN, claim.seq, claim.attempts, claim.deadline_ms))


def record(outcome: Outcome = Outcome.DELIVERED, **fields: object) -> RecordOutcome:
    known: dict[str, object] = {"dispatched_ms": NOW - 5, "attempts": 1, **fields}
    return RecordOutcome(OutcomeRecord(VIN, SEQ, outcome, NOW, **known))  # type: ignore[arg-type]  # fields by name


def is_mine(claim: ClaimReply) -> State:
    return IDLE._replace(hand=Hand(claim.seq, NOW, claim.deadline_ms))


def session_destroyed(reason: str) -> Row:
    left = replace(LEFT, reason=reason, expiry_s=300)
    return (
        f"a disconnect because it was {reason} takes the session along",
        IDLE,
        left,
        IDLE,
        [Touch(replace(left, expiry_s=0), False)],
    )


FAILS: list[Effect] = [
    RecordOutcome(OutcomeRecord(VIN, SEQ, Outcome.FAILED, NOW, attempts=3, reason="not acknowledged after 3 attempts")),
    Ack(SEQ, Outcome.FAILED, NOW, reason="not acknowledged after 3 attempts"),
]

ROWS: list[Row] = [
    # What comes from outside becomes one verb each; Redis decides.
    ("a wake-up tries to claim", IDLE, Woken(), IDLE, [Claim()]),
    ("a wake-up while something is in hand asks Redis all the same", BUSY, Woken(), BUSY, [Claim()]),
    ("a sign marks the vehicle as present and claims", IDLE, Heard(), IDLE, [Touch(Heard(), claim=True)]),
    ("a connection alone publishes nothing", IDLE, RESUMED, IDLE, [Touch(RESUMED, claim=False)]),
    ("a connection publishes where the setting says so", State(EAGER, VIN), CLEAN, State(EAGER, VIN), [Touch(CLEAN, claim=True)]),
    ("a subscription alone publishes nothing", IDLE, LISTENS, IDLE, [Touch(LISTENS, claim=False)]),
    (
        "a subscription publishes where the setting says so",
        State(EAGER, VIN),
        LISTENS,
        State(EAGER, VIN),
        [Touch(LISTENS, claim=True)],
    ),
    (
        "the end of a subscription never publishes",
        State(EAGER, VIN),
        replace(LISTENS, on=False),
        State(EAGER, VIN),
        [Touch(replace(LISTENS, on=False), claim=False)],
    ),
    (
        "a subscription to another vehicle's topic says nothing",
        IDLE,
        replace(LISTENS, topic_filter="agent/VIN-2/#"),
        IDLE,
        [Ignore("a filter that gets none of its requests")],
    ),
    ("a disconnect marks the vehicle as absent", IDLE, LEFT, IDLE, [Touch(LEFT, claim=False)]),
    *(session_destroyed(reason) for reason in ("discarded", "kicked")),
    (
        "a take-over keeps the session",
        IDLE,
        replace(LEFT, reason="takenover"),
        IDLE,
        [Touch(replace(LEFT, reason="takenover"), False)],
    ),
    ("a passed deadline looks first", IDLE, DeadlinePassed(), IDLE, [Claim()]),
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
    # Publishing.
    ("what is loaded is published", BUSY, LOADED, BUSY, [Publish(LOADED, HAND.deadline_ms)]),
    (
        "what is loaded after its claim was released is not published",
        IDLE,
        LOADED,
        IDLE,
        [Ignore("late word of a claim that is over")],
    ),
    (
        "what is loaded for an older claim of the same entry is not published",
        BUSY,
        altered(LOADED, claimed_ms=NOW - 50_000),
        BUSY,
        [Ignore("late word of a claim that is over")],
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
        IDLE._replace(hand=HAND._replace(heard=True)),
        Published(SEQ, NOW - 5, 16),
        IDLE,
        [Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW - 5, again=True)],
    ),
    (
        "a late PUBACK 16 never touches a newer entry",
        IDLE._replace(hand=Hand(NEWER, NOW, NOW + 30_000)),
        Published(SEQ, NOW - 5, 16),
        IDLE._replace(hand=Hand(NEWER, NOW, NOW + 30_000)),
        [Ignore("late word of a claim that is over")],
    ),
    (
        "a late PUBACK 16 never touches a newer claim of the same entry",
        BUSY,
        Published(SEQ, NOW - 40_000, 16),
        BUSY,
        [Ignore("late word of a claim that is over")],
    ),
    (
        "a refusal by the broker waits for the deadline",
        BUSY,
        Published(SEQ, NOW - 5, 0x97),
        IDLE,
        [Ignore("refused by the broker; its deadline brings it again")],
    ),
    (
        "a publish lost with the connection is released by name and claimed again",
        BUSY,
        PublishLost(SEQ, NOW - 5),
        IDLE,
        [Release(SEQ, ReleaseReason.LOST, NOW - 5, again=True)],
    ),
    ("a publish that came too late for its deadline looks first", BUSY, NotPublished(SEQ, NOW - 5), IDLE, [Claim()]),
    ("data that nobody has parks the entry", BUSY, Missing(SEQ, NOW - 5, "d1"), IDLE, [Park(SEQ, "d1")]),
    ("the next one follows a parked one", IDLE, answered(Park(SEQ, "d1"), NEXT), is_mine(NEXT), [watch(NEXT), Load(NEWER, NOW)]),
    ("a parked one that was released meanwhile leaves nothing to do", IDLE, answered(Park(SEQ, "d1"), NONE), IDLE, []),
    # Acknowledgements.
    ("an acknowledgement ends its entry", BUSY, ACKED, BUSY, [ACK]),
    (
        "what the vehicle says goes with it",
        BUSY,
        replace(ACKED, reason="no space left"),
        BUSY,
        [altered(ACK, reason="no space left")],
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
        "delivered: the outcome is recorded and the next one claimed, before the broker has confirmed the first",
        BUSY,
        answered(ACK, AckReply("ended", NOW - 5, 1, NEXT)),
        is_mine(NEXT),
        [record(), watch(NEXT), Load(NEWER, NOW)],
    ),
    (
        "an acknowledgement after the release still ends the entry",
        IDLE,
        answered(ACK, AckReply("ended", None, 1, NONE)),
        IDLE,
        [record(dispatched_ms=NOW - 4)],
    ),
    (
        "an acknowledgement that comes again is recorded again: the first may have died before its record",
        IDLE,
        answered(ACK, AckReply("known", None, None, HELD)),
        IDLE,
        [record(dispatched_ms=NOW - 4, attempts=None), watch(HELD)],
    ),
    (
        "an acknowledgement that a wiped Redis does not know is recorded",
        IDLE,
        answered(ACK, AckReply("unknown", None, None, ClaimReply(ClaimWord.IDLE))),
        IDLE,
        [record(dispatched_ms=NOW - 4, attempts=None)],
    ),
    (
        "a late acknowledgement leaves the newer entry in hand",
        BUSY,
        answered(altered(ACK, seq=OLDER), AckReply("known", None, None, HELD)),
        BUSY,
        [RecordOutcome(OutcomeRecord(VIN, OLDER, Outcome.DELIVERED, NOW, NOW - 4)), watch(HELD)],
    ),
    # Sessions.
    (
        "a session that is gone leaves nothing in hand",
        BUSY,
        answered(Touch(CLEAN, False), TouchReply("noted", SEQ, NONE)),
        IDLE,
        [],
    ),
    (
        "a resumed session has its entry watched anew",
        BUSY,
        answered(Touch(RESUMED, False), TouchReply("noted", None, NONE)),
        BUSY,
        [Watch(NOW + 30_000)],
    ),
    (
        "a resumed session and a heartbeat publish nothing while the entry is in flight",
        IDLE,
        answered(Touch(Heard(), True), TouchReply("noted", None, HELD)),
        IDLE,
        [watch(HELD)],
    ),
    (
        "a sign while the publish is under way is remembered",
        BUSY,
        answered(Touch(Heard(), True), TouchReply("noted", None, HELD)),
        IDLE._replace(hand=HAND._replace(heard=True)),
        [watch(HELD)],
    ),
    (
        "a message that the broker threw away is released",
        IDLE,
        DeliveryDropped(VIN, NOW, SEQ, "queue_full"),
        IDLE,
        [Release(SEQ, ReleaseReason.LOST)],
    ),
    (
        "a foreign message that the broker threw away says nothing",
        IDLE,
        DeliveryDropped(VIN, NOW, None, "queue_full"),
        IDLE,
        [Ignore("a dropped message of another")],
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
        [Touch(Heard(), claim=True)],
    ),
    (
        "a release that names what is not in flight any more changes nothing",
        IDLE,
        answered(Release(SEQ, ReleaseReason.LOST, NOW - 5, again=True), ReleaseReply("stale")),
        IDLE,
        [Ignore("released too late: it is not in flight")],
    ),
    # Attempts.
    (
        "the last attempt's deadline fails the entry",
        State(THREE, VIN),
        answered(Release(SEQ, ReleaseReason.DEADLINE, again=True), ReleaseReply("released", attempts=3)),
        State(THREE, VIN),
        FAILS,
    ),
    (
        "an attempt is left: it goes again",
        State(THREE, VIN),
        answered(Release(SEQ, ReleaseReason.DEADLINE, again=True), ReleaseReply("released", attempts=2)),
        State(THREE, VIN),
        [Claim()],
    ),
    (
        "a claim beyond the last attempt fails the entry instead of publishing it",
        State(THREE, VIN),
        answered(Touch(Heard(), True), TouchReply("noted", SEQ, CLAIMED._replace(attempts=4))),
        State(THREE, VIN),
        FAILS,
    ),
    (
        "a failure was recorded before it was made: the next one goes",
        State(THREE, VIN),
        answered(Ack(SEQ, Outcome.FAILED, NOW, reason="why"), AckReply("ended", None, 3, NEXT)),
        State(THREE, VIN, Hand(NEWER, NOW, NEXT.deadline_ms)),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
    # What must not be sent any more.
    (
        "what has expired, or was cancelled in flight, is recorded, then ended, and never published",
        IDLE,
        answered(Touch(Heard(), True), TouchReply("noted", None, OVER)),
        IDLE,
        [
            RecordOutcome(OutcomeRecord(VIN, OLDER, Outcome.EXPIRED, NOW, attempts=0, reason="its retention has passed")),
            RecordOutcome(OutcomeRecord(VIN, SEQ, Outcome.CANCELLED, NOW, attempts=2, reason=NOT_ACKNOWLEDGED)),
            End(OVER.over),
        ],
    ),
    (
        "the next one follows what was ended",
        IDLE,
        answered(End(OVER.over), EndReply((Outcome.EXPIRED, Outcome.CANCELLED), NEXT)),
        is_mine(NEXT),
        [watch(NEXT), Load(NEWER, NOW)],
    ),
]


@pytest.mark.parametrize(("before", "event", "after", "effects"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_step(before: State, event: Event, after: State, effects: list[Effect]) -> None:
    assert step(before, event) == (after, effects)


def test_an_answer_that_does_not_fit_its_verb_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="is not an answer to"):
        step(IDLE, answered(Claim(), AckReply("ended", None, None, NONE)))


@pytest.mark.parametrize(
    ("topic_filter", "reaches"),
    [
        ("agent/VIN-1/proxy/request/+", True),
        ("agent/VIN-1/proxy/request/task_a_1", True),
        ("agent/VIN-1/proxy/#", True),
        ("agent/VIN-1/proxy/request/#", True),
        ("agent/+/proxy/request/+", True),
        ("#", True),
        ("$share/garage/agent/VIN-1/proxy/request/+", True),
        ("agent/VIN-1", False),
        ("agent/VIN-1/proxy/request", False),
        ("agent/VIN-1/proxy/request/a/b", False),
        ("agent/VIN-2/proxy/request/+", False),
        ("other/VIN-1/proxy/request/+", False),
    ],
)
def test_a_filter_reaches_the_vehicle_if_it_can_get_one_of_its_requests(topic_filter: str, reaches: bool) -> None:
    assert RULES.reaches(topic_filter, VIN) is reaches


def test_each_attempt_has_twice_the_time_up_to_the_maximum() -> None:
    assert [RULES.wait_ms(attempt) for attempt in (1, 2, 3, 4, 9)] == [30_000, 60_000, 120_000, 120_000, 120_000]


def test_the_deadlines_of_one_batch_are_not_looked_at_together_and_never_too_early() -> None:
    looks = [RULES.look_at_ms(f"VIN-{n}", SEQ, 1, NOW) for n in range(100)]
    assert min(looks) > NOW
    assert max(looks) <= NOW + 1 + 3_000
    assert len({look // 100 for look in looks}) > 20
