"""The events of one queue, and the effects that `step` returns for them.

An event comes from a vehicle, from the broker, from this process (about its open claim), or from Redis (the reply to a verb). An
effect is a verb of `manifold.queues.verbs` or one of the classes at the end of this module.
"""

from typing import Any

from msgspec import Struct

from manifold.contracts.events import Acked, Connected, DeliveryDropped, Disconnected, PresenceSign, Subscribed
from manifold.contracts.queue_names import QueueName
from manifold.queues.verbs.claims import Claim, Park, Release, UpdatePresence
from manifold.queues.verbs.ecq import Acknowledge, Subscription
from manifold.queues.verbs.ends import Ack, End


class Woken(Struct, frozen=True):
    """There may be something to claim: new entries, or a parked entry whose data has arrived.

    `released` is the seq that a compacted queue had in flight when its client's session ended. Without `claim`, nothing is
    claimed now, because the first subscription of the new session will claim.
    """

    released: int | None = None
    claim: bool = True


class DeadlinePassed(Struct, frozen=True):
    """The entry in flight of this queue may be overdue."""


class Loaded(Struct, frozen=True):
    """The payload of the claimed entry is loaded. `claimed_ms` identifies the claim."""

    seq: int
    claimed_ms: int
    request_id: str  # in a compacted queue, the key
    data_id: str  # in a compacted queue, empty
    payload: bytes
    is_release: bool = False  # whether the trigger is a campaign's release; `request_id` is then the campaign
    until_ms: int | None = None  # end of the vehicle's time window, Unix ms


class Missing(Struct, frozen=True):
    """Neither Redis nor the lake has the data of the claimed entry."""

    seq: int
    claimed_ms: int
    data_id: str  # empty if even the trigger is unknown


class Published(Struct, frozen=True):
    """The broker has replied to this dispatcher's publish (PUBACK), also if it rejects the publish."""

    seq: int
    claimed_ms: int
    reason_code: int


class PublishLost(Struct, frozen=True):
    """The connection broke before the PUBACK; the broker may or may not have the message."""

    seq: int
    claimed_ms: int
    alone: bool = False  # whether it was sent alone, because earlier losses had made it a suspect


class Unsendable(Struct, frozen=True):
    """The packet exceeds the maximum packet size of the broker or the vehicle."""

    seq: int
    claimed_ms: int
    at_ms: int
    why: str


class Withheld(Struct, frozen=True):
    """The entry must not be sent, because its campaign is braked or the vehicle's time window is over."""

    seq: int
    claimed_ms: int
    at_ms: int
    why: str


class NotPublished(Struct, frozen=True):
    """The entry was not published in time: there was no connection, no room in the window, or the brakes were unknown."""

    seq: int
    claimed_ms: int


# The effects to which Redis replies; the reply is the next event of the queue.
Verb = Claim | UpdatePresence | Ack | End | Release | Park | Acknowledge | Subscription


class Answered(Struct, frozen=True):
    """Redis has carried out a verb; `reply` is the verb's reply."""

    verb: Verb
    reply: Any
    now_ms: int  # the time that was passed to the verb, in Unix ms
    asked_at: int  # the same instant by `monotonic_ms`
    repeated: bool = False  # whether the verb was sent before with the same time, and the reply was lost


# Events from a vehicle, from the broker, or about what waits in the queue.
QueueEvent = Woken | PresenceSign | DeadlinePassed | Connected | Disconnected | Subscribed | Acked | DeliveryDropped
# Events about a claim of this process.
ClaimEvent = Loaded | Missing | Published | PublishLost | NotPublished | Unsendable | Withheld
Event = QueueEvent | ClaimEvent | Answered


class Load(Struct, frozen=True):
    """Read trigger and payload of the claimed entry. The event `Loaded` or `Missing` follows."""

    seq: int
    claimed_ms: int


class Publish(Struct, frozen=True):
    """Publish the entry to the vehicle, unless `send_by` has passed.

    One of the events `Published`, `PublishLost`, `Unsendable`, `Withheld` and `NotPublished` follows.
    """

    entry: Loaded
    send_by: int  # latest time to publish, by `monotonic_ms`
    max_packet_bytes: int = 0  # the largest packet in bytes that the vehicle accepts; 0: no limit, or unknown


class Watch(Struct, frozen=True):
    """Check this queue again at `at_ms` (Unix ms)."""

    at_ms: int


class Forward(Struct, frozen=True):
    """Also offer this event to another queue of the same vehicle."""

    queue: QueueName
    event: Woken


class Ignore(Struct, frozen=True):
    """Do nothing, for this reason."""

    why: str


Effect = Verb | Load | Publish | Watch | Forward | Ignore
