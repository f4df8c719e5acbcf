"""External events, and the resulting knowledge of connections and sessions."""

from msgspec.structs import replace

from dispatcher._events import DeadlinePassed, Effect, Event, Ignore, Watch, Woken
from dispatcher._step import OwnerState, step
from manifold.contracts.events import PresenceSign
from manifold.queues.verbs.claims import Claim, Release, ReleaseReason, UpdatePresence, UpdatePresenceReply
from tests.dispatcher.steps import (
    BUSY,
    CLEAN,
    DROPPED,
    EAGER,
    HELD,
    IDLE,
    LEFT,
    LISTENS,
    NONE,
    NOW,
    OPEN_CLAIM,
    RESUMED,
    SEQ,
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
        [UpdatePresence(replace(left, expiry_s=0), False)],
    )


ROWS: list[Row] = [
    # Each event becomes one verb; Redis decides.
    ("a wake-up tries to claim", IDLE, Woken(), IDLE, [Claim()]),
    ("a wake-up with an entry in hand still asks Redis", BUSY, Woken(), BUSY, [Claim()]),
    (
        "a heartbeat marks the vehicle as present and claims",
        IDLE,
        PresenceSign(),
        IDLE,
        [UpdatePresence(PresenceSign(), claim=True)],
    ),
    ("a connection alone publishes nothing", IDLE, RESUMED, IDLE, [UpdatePresence(RESUMED, claim=False)]),
    ("a connection publishes with dispatch_on_connect", EAGER, CLEAN, EAGER, [UpdatePresence(CLEAN, claim=True)]),
    ("a subscription alone publishes nothing", IDLE, LISTENS, IDLE, [UpdatePresence(LISTENS, claim=False)]),
    ("a subscription publishes with dispatch_on_subscribe", EAGER, LISTENS, EAGER, [UpdatePresence(LISTENS, claim=True)]),
    (
        "the end of a subscription never publishes",
        EAGER,
        replace(LISTENS, on=False),
        EAGER,
        [UpdatePresence(replace(LISTENS, on=False), claim=False)],
    ),
    (
        "a subscription to the topic of another vehicle is ignored",
        IDLE,
        replace(LISTENS, topic_filter="agent/VIN-2/#"),
        IDLE,
        [Ignore("a filter that gets none of its messages")],
    ),
    ("a disconnect marks the vehicle as absent", IDLE, LEFT, IDLE, [UpdatePresence(LEFT, claim=False)]),
    *(session_destroyed(reason) for reason in ("discarded", "kicked")),
    (
        "a takeover keeps the session",
        IDLE,
        replace(LEFT, reason="takenover"),
        IDLE,
        [UpdatePresence(replace(LEFT, reason="takenover"), False)],
    ),
    ("a passed deadline asks Redis first", IDLE, DeadlinePassed(), IDLE, [Claim()]),
    # Sessions.
    (
        "a lost session leaves no entry in hand",
        BUSY,
        answered(UpdatePresence(CLEAN, False), UpdatePresenceReply("noted", SEQ, NONE)),
        IDLE,
        [],
    ),
    (
        "a resumed session has its entry watched again",
        BUSY,
        answered(UpdatePresence(RESUMED, False), UpdatePresenceReply("noted", None, NONE)),
        BUSY,
        [Watch(NOW + 30_000)],
    ),
    (
        "a resumed session and a heartbeat publish nothing while the entry is in flight",
        IDLE,
        answered(UpdatePresence(PresenceSign(), True), UpdatePresenceReply("noted", None, HELD)),
        IDLE,
        [watch(HELD)],
    ),
    (
        "a heartbeat while the publish is under way is remembered",
        BUSY,
        answered(UpdatePresence(PresenceSign(), True), UpdatePresenceReply("noted", None, HELD)),
        replace(IDLE, open_claim=replace(OPEN_CLAIM, heard=True)),
        [watch(HELD)],
    ),
    ("a message discarded by the broker is released", IDLE, DROPPED, IDLE, [Release(SEQ, ReleaseReason.LOST)]),
    (
        "a foreign message discarded by the broker is ignored",
        IDLE,
        replace(DROPPED, seq=None),
        IDLE,
        [Ignore("dropped message of another client")],
    ),
]


@table(ROWS)
def test_step(before: OwnerState, event: Event, after: OwnerState, effects: list[Effect]) -> None:
    assert step(before, event) == (after, effects)
