"""What can happen to one queue: what others say, what becomes of an open claim, what Redis answers."""

from typing import Any

from msgspec import Struct

from contracts.events import Acked, Connected, DeliveryDropped, Disconnected, Heard, Subscribed
from queues.verbs.claims import Claim, Park, Release, UpdatePresence
from queues.verbs.ecq import Acknowledge, Subscription
from queues.verbs.ends import Ack, End


class Woken(Struct, frozen=True):
    """There may be something to claim: new entries, or a parked one whose data has come.

    `released` is what a compacted queue had in flight until its client's session ended.
    """

    released: int | None = None


class DeadlinePassed(Struct, frozen=True):
    """Something of this queue may be in flight for longer than it should."""


class Loaded(Struct, frozen=True):
    """What to send for the claimed entry is known. `claimed_ms` says which claim it was loaded for."""

    seq: int
    claimed_ms: int
    request_id: str  # in a compacted queue, the key
    data_id: str  # in a compacted queue, empty
    payload: bytes


class Missing(Struct, frozen=True):
    """Neither Redis nor the lake has what the claimed entry is to send."""

    seq: int
    claimed_ms: int
    data_id: str  # empty: the trigger itself is unknown


class Published(Struct, frozen=True):
    """The broker's PUBACK to this dispatcher's own publish."""

    seq: int
    claimed_ms: int
    reason_code: int


class PublishLost(Struct, frozen=True):
    """The connection broke before the PUBACK came: the broker may have the message, or not."""

    seq: int
    claimed_ms: int
    alone: bool = False  # it has been there before when a connection broke, and this time nothing else was under way


class Unsendable(Struct, frozen=True):
    """The broker does not take a packet as large as this one would be."""

    seq: int
    claimed_ms: int
    at_ms: int
    why: str


class NotPublished(Struct, frozen=True):
    """Its deadline passed before there was a connection, or room, to publish it."""

    seq: int
    claimed_ms: int


Verb = (
    Claim | UpdatePresence | Ack | End | Release | Park | Acknowledge | Subscription
)  # Redis answers these, and the answer is the next event


class Answered(Struct, frozen=True):
    """Redis has carried out a verb. `reply` is what that verb reads."""

    verb: Verb
    reply: Any
    now_ms: int  # the time that the verb was given
    repeated: bool = False  # it was sent before with the same time, and that answer was lost


Seen = Woken | Heard | DeadlinePassed | Connected | Disconnected | Subscribed | Acked | DeliveryDropped
# What becomes of a claim that this process has open.
OfClaim = Loaded | Missing | Published | PublishLost | NotPublished | Unsendable
Event = Seen | OfClaim | Answered
