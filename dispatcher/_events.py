"""The events of one queue: what others tell, what becomes of an open claim, what Redis answers."""

from typing import Any

from msgspec import Struct

from manifold.contracts.events import Acked, Connected, DeliveryDropped, Disconnected, Heard, Subscribed
from manifold.queues.verbs.claims import Claim, Park, Release, UpdatePresence
from manifold.queues.verbs.ecq import Acknowledge, Subscription
from manifold.queues.verbs.ends import Ack, End


class Woken(Struct, frozen=True):
    """There may be something to claim: new entries, or a parked entry whose data has come.

    `released` is the seq that a compacted queue had in flight when its client's session ended. Without `claim`, nothing is
    claimed: the first subscription of a new session does that.
    """

    released: int | None = None
    claim: bool = True


class DeadlinePassed(Struct, frozen=True):
    """The entry in flight of this queue may be overdue."""


class Loaded(Struct, frozen=True):
    """The claimed entry can be sent. `claimed_ms` names the claim for which it was loaded."""

    seq: int
    claimed_ms: int
    request_id: str  # in a compacted queue, the key
    data_id: str  # in a compacted queue, empty
    payload: bytes


class Missing(Struct, frozen=True):
    """Neither Redis nor the lake has the data of the claimed entry."""

    seq: int
    claimed_ms: int
    data_id: str  # empty: the trigger itself is unknown


class Published(Struct, frozen=True):
    """The broker has confirmed this dispatcher's publish (PUBACK)."""

    seq: int
    claimed_ms: int
    reason_code: int


class PublishLost(Struct, frozen=True):
    """The connection broke before the PUBACK came; the broker may or may not have the message."""

    seq: int
    claimed_ms: int
    alone: bool = False  # it has been there before when a connection broke, and this time nothing else was under way


class Unsendable(Struct, frozen=True):
    """The packet is larger than the broker, or the vehicle, accepts."""

    seq: int
    claimed_ms: int
    at_ms: int
    why: str


class NotPublished(Struct, frozen=True):
    """The deadline passed before there was a connection, or room, to publish the entry."""

    seq: int
    claimed_ms: int


Verb = (
    Claim | UpdatePresence | Ack | End | Release | Park | Acknowledge | Subscription
)  # Redis answers these, and the answer is the next event


class Answered(Struct, frozen=True):
    """Redis has carried out a verb; `reply` is that of the verb."""

    verb: Verb
    reply: Any
    now_ms: int  # the time that the verb was given
    asked_at: int  # the same instant, by `steady_ms`
    repeated: bool = False  # it was sent before with the same time, and that answer was lost


Seen = Woken | Heard | DeadlinePassed | Connected | Disconnected | Subscribed | Acked | DeliveryDropped
# What becomes of a claim that this process has open.
OfClaim = Loaded | Missing | Published | PublishLost | NotPublished | Unsendable
Event = Seen | OfClaim | Answered
