"""`step` for compacted queues, where it differs from fanout queues."""

import pytest
from msgspec.structs import replace

from dispatcher._events import (
    DeadlinePassed,
    Effect,
    Event,
    Forward,
    Ignore,
    Load,
    Loaded,
    Missing,
    Publish,
    Published,
    Unsendable,
    Watch,
    Woken,
)
from dispatcher._step import OpenClaim, OwnerState, step
from manifold.contracts.ecq import EcqAck
from manifold.contracts.events import Acked, PresenceSign, Subscribed
from manifold.contracts.outcomes import Outcome
from manifold.contracts.queue_names import ecq_queue
from manifold.queues.verbs.claims import (
    Claim,
    ClaimReply,
    ClaimWord,
    MustEnd,
    Release,
    ReleaseReason,
    ReleaseReply,
    UpdatePresence,
    UpdatePresenceReply,
)
from manifold.queues.verbs.ecq import Acknowledge, AckReply, Subscription
from tests.dispatcher.steps import (
    BUSY,
    CLAIMED,
    DROPPED,
    HELD,
    IDLE,
    LISTENS,
    NONE,
    NOW,
    OVERDUE,
    RESUMED,
    RULES,
    SEND_BY,
    SEQ,
    THREE,
    VIN,
    Row,
    answered,
    table,
)

QUEUE = ecq_queue(VIN)
EMPTY = OwnerState(RULES, QUEUE)
UNSENT = replace(EMPTY, open_claim=OpenClaim(SEQ, NOW, SEND_BY))
UNDER_WAY = replace(EMPTY, open_claim=OpenClaim(SEQ, NOW, SEND_BY, sent=True))
RECHECK = Watch(RULES.recheck_at_ms(QUEUE, SEQ, 1, CLAIMED.deadline_ms))
ACKED = Acked(VIN, NOW, f"$ECQ/{VIN}/seat/left", SEQ, NOW - 4, None)
ACK = EcqAck(VIN, SEQ, NOW)
SUBSCRIBED = Subscribed(VIN, NOW, f"$ECQ/{VIN}/#", True, 1)
NOT_ITS_OWN: list[Effect] = [Ignore("an acknowledgement of a message that is not its own")]

ROWS: list[Row] = [
    ("a wake-up claims", EMPTY, Woken(), EMPTY, [Claim()]),
    ("an ended session releases its claim", UNDER_WAY, Woken(released=SEQ), EMPTY, [Claim()]),
    ("an ended session claims nothing before a new subscription", UNDER_WAY, Woken(released=SEQ, claim=False), EMPTY, []),
    ("an ended session leaves a newer claim alone", UNDER_WAY, Woken(released=SEQ - 1), UNDER_WAY, [Claim()]),
    ("a passed deadline asks Redis first", EMPTY, DeadlinePassed(), EMPTY, [Claim()]),
    (
        "a claim with its message is published at once",
        EMPTY,
        answered(Claim(), CLAIMED._replace(message=b"seat/left\0\0hello\0")),
        UNDER_WAY,
        [RECHECK, Publish(Loaded(SEQ, NOW, "seat/left", "", b"\0hello\0"), SEND_BY)],
    ),
    (
        "a claim with its message is published with the maximum packet size",
        EMPTY,
        answered(Claim(), CLAIMED._replace(message=b"a\0hello", max_packet_bytes=256)),
        replace(EMPTY, open_claim=OpenClaim(SEQ, NOW, SEND_BY, sent=True, max_packet_bytes=256)),
        [RECHECK, Publish(Loaded(SEQ, NOW, "a", "", b"hello"), SEND_BY, 256)],
    ),
    (
        "a message past its retention ends as expired instead of being sent",
        EMPTY,
        answered(Claim(), ClaimReply(ClaimWord.MUST_END, must_end=(MustEnd(SEQ, Outcome.EXPIRED, 0),))),
        EMPTY,
        [Acknowledge(EcqAck(VIN, SEQ, NOW, reason="its retention has passed", passed_over=True, outcome=Outcome.EXPIRED))],
    ),
    ("a claim without its message is loaded", EMPTY, answered(Claim(), CLAIMED), UNSENT, [RECHECK, Load(SEQ, NOW)]),
    (
        "a missing message keeps its place and is retried at its deadline",
        UNSENT,
        Missing(SEQ, NOW, ""),
        UNSENT,
        [Ignore("data missing; retried at the deadline")],
    ),
    (
        "a message not loaded by its deadline counts no attempt",
        UNSENT,
        answered(Claim(), OVERDUE),
        UNSENT,
        [Release(SEQ, ReleaseReason.UNSENT, NOW, then_claim=True)],
    ),
    ("an acknowledgement moves the position", UNDER_WAY, ACKED, UNDER_WAY, [Acknowledge(ACK)]),
    ("an acknowledgement ends the claim", UNDER_WAY, answered(Acknowledge(ACK), AckReply("ended", NOW, 1, 0, NONE)), EMPTY, []),
    (
        "an acknowledgement of a request belongs to the other queue",
        UNDER_WAY,
        replace(ACKED, topic=f"agent/{VIN}/proxy/request/r"),
        UNDER_WAY,
        NOT_ITS_OWN,
    ),
    (
        "an acknowledgement by another client proves nothing",
        UNDER_WAY,
        replace(ACKED, topic="$ECQ/VIN-2/seat/left"),
        UNDER_WAY,
        NOT_ITS_OWN,
    ),
    (
        "an acknowledgement of a write by a service proves nothing",
        UNDER_WAY,
        replace(ACKED, topic=f"$ECQ/w/{VIN}/a"),
        UNDER_WAY,
        NOT_ITS_OWN,
    ),
    ("an acknowledgement without a seq proves nothing", UNDER_WAY, replace(ACKED, seq=None), UNDER_WAY, NOT_ITS_OWN),
    ("a subscription starts the queue", EMPTY, SUBSCRIBED, EMPTY, [Subscription(1, claim=True, at_ms=SUBSCRIBED.at_ms)]),
    (
        "a QoS 0 subscription is noted",
        EMPTY,
        replace(SUBSCRIBED, qos=0),
        EMPTY,
        [Subscription(0, claim=False, at_ms=SUBSCRIBED.at_ms)],
    ),
    (
        "the end of a subscription is noted",
        EMPTY,
        replace(SUBSCRIBED, on=False),
        EMPTY,
        [Subscription(None, claim=False, at_ms=SUBSCRIBED.at_ms)],
    ),
    (
        "a subscription of another client is ignored",
        EMPTY,
        replace(SUBSCRIBED, topic_filter="$ECQ/VIN-2/#"),
        EMPTY,
        [Ignore("a filter that gets none of its messages")],
    ),
    (
        "a subscription while the publish is under way is remembered",
        UNDER_WAY,
        answered(Subscription(1, claim=True), HELD._replace(deadline_ms=CLAIMED.deadline_ms)),
        replace(UNDER_WAY, open_claim=OpenClaim(SEQ, NOW, SEND_BY, heard=True, sent=True)),
        [RECHECK],
    ),
    (
        "after a subscription during the publish, a publish without a subscriber is retried",
        EMPTY,
        answered(Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW, then_claim=True), ReleaseReply("released", 0)),
        EMPTY,
        [Claim()],
    ),
    (
        "a publish without a subscriber is retried if another replica saw the subscription",
        EMPTY,
        answered(Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW), ReleaseReply("released", 0, resubscribed=True)),
        EMPTY,
        [Claim()],
    ),
    (
        "a publish without a subscriber is released",
        UNDER_WAY,
        Published(SEQ, NOW, 0x10),
        EMPTY,
        [Release(SEQ, ReleaseReason.UNSUBSCRIBED, NOW)],
    ),
    ("a message discarded by the broker is released", EMPTY, DROPPED, EMPTY, [Release(SEQ, ReleaseReason.LOST)]),
    (
        "a packet that the broker refuses is skipped",
        UNDER_WAY,
        Unsendable(SEQ, NOW, NOW + 1, "too large"),
        EMPTY,
        [Acknowledge(EcqAck(VIN, SEQ, NOW + 1, reason="too large", passed_over=True))],
    ),
    (
        "a message is skipped after its last attempt",
        replace(EMPTY, policy=THREE.policy),
        answered(Release(SEQ, ReleaseReason.DEADLINE), ReleaseReply("released", 3)),
        replace(EMPTY, policy=THREE.policy),
        [Acknowledge(EcqAck(VIN, SEQ, NOW, reason="not acknowledged after 3 attempts", passed_over=True))],
    ),
    # The fanout queue of the same vehicle hears of its connection and forwards it.
    (
        "a heartbeat wakes a compacted queue with pending messages",
        IDLE,
        answered(UpdatePresence(PresenceSign(), True), UpdatePresenceReply("noted", None, HELD, ecq_wake=True)),
        IDLE,
        [Watch(RULES.recheck_at_ms(VIN, HELD.seq, HELD.attempts, HELD.deadline_ms)), Forward(QUEUE, Woken())],
    ),
    (
        "an ended session reports the message in flight of the compacted queue",
        BUSY,
        answered(UpdatePresence(RESUMED, False), UpdatePresenceReply("noted", None, NONE, ecq_released=7)),
        BUSY,
        [Watch(NOW + 30_000), Forward(QUEUE, Woken(released=7, claim=False))],
    ),
    ("a subscription to requests belongs to the fanout queue", IDLE, LISTENS, IDLE, [UpdatePresence(LISTENS, claim=False)]),
]


@table(ROWS)
def test_step(before: OwnerState, event: Event, after: OwnerState, effects: list[Effect]) -> None:
    assert step(before, event) == (after, effects)


@pytest.mark.parametrize(
    ("topic_filter", "reaches"),
    [
        (f"$ECQ/{VIN}/#", True),
        (f"$ECQ/{VIN}/+", True),
        (f"$ECQ/{VIN}/seat/left", True),
        ("$ECQ/+/#", True),
        ("$ECQ/#", True),
        (f"$share/garage/$ECQ/{VIN}/#", True),
        (f"$exclusive/$ECQ/{VIN}/#", True),
        (f"$ECQ/{VIN}", False),
        (f"$ECQ/w/{VIN}/#", False),
        ("$ECQ/VIN-2/#", False),
        ("#", False),
        ("+/+/#", False),
        (f"agent/{VIN}/#", False),
    ],
)
def test_a_filter_reaches_a_compacted_queue_if_it_matches_one_of_its_messages(topic_filter: str, reaches: bool) -> None:
    assert RULES.reaches(topic_filter, QUEUE) is reaches
