"""What comes from outside, and what is then known of connections and sessions."""

from dataclasses import replace

from contracts.events import DeliveryDropped, Heard
from dispatcher._step import State, step
from dispatcher._vocabulary import DeadlinePassed, Effect, Event, Ignore, Watch, Woken
from queues.verbs.claims import Claim, Release, ReleaseReason, Touch, TouchReply
from tests.dispatcher.steps import (
    BUSY,
    CLEAN,
    EAGER,
    HAND,
    HELD,
    IDLE,
    LEFT,
    LISTENS,
    NONE,
    NOW,
    RESUMED,
    SEQ,
    VIN,
    Row,
    answered,
    table,
    watch,
)


def session_destroyed(reason: str) -> Row:
    left = replace(LEFT, reason=reason, expiry_s=300)
    return (
        f"a disconnect because it was {reason} takes the session along",
        IDLE,
        left,
        IDLE,
        [Touch(replace(left, expiry_s=0), False)],
    )


ROWS: list[Row] = [
    # It becomes one verb each; Redis decides.
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
]


@table(ROWS)
def test_step(before: State, event: Event, after: State, effects: list[Effect]) -> None:
    assert step(before, event) == (after, effects)
