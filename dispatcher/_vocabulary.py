"""What can happen to one owner's queue (events), and what is then to be done (effects). Plain values, no behaviour."""

from typing import Any

from msgspec import Struct

from contracts.events import Acked, Connected, DeliveryDropped, Disconnected, Subscribed
from contracts.outcomes import OutcomeRecord
from queues import ReleaseReason


class Woken(Struct, frozen=True):
    """There may be something to claim: new entries, or a parked one whose data has come."""


class Heard(Struct, frozen=True):
    """The vehicle sent an online or a heartbeat."""


class DeadlinePassed(Struct, frozen=True):
    """Something of this owner may be in flight for longer than it should."""


class Loaded(Struct, frozen=True):
    """What to send for the claimed entry is known. `claimed_ms` says which claim it was loaded for."""

    seq: int
    claimed_ms: int
    request_id: str
    data_id: str
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


class Claim(Struct, frozen=True):
    """Put the oldest pending entry in flight, if the vehicle is here and nothing is."""


class Touch(Struct, frozen=True):
    """Note what was seen of the vehicle's connection; with `claim`, claim in the same breath."""

    seen: Heard | Connected | Disconnected | Subscribed
    claim: bool


class Ack(Struct, frozen=True):
    """End the entry of this outcome, however it stands, hand the outcome to the recorder, and claim the next one."""

    record: OutcomeRecord
    request_id: str = ""


class End(Struct, frozen=True):
    """End the oldest pending entries, which must not be sent any more, hand their outcomes on, and claim the next one."""

    records: tuple[OutcomeRecord, ...]


class Release(Struct, frozen=True):
    """Put `seq` back to pending, if it is still what is in flight; with `again`, try at once to claim."""

    seq: int
    reason: ReleaseReason
    claimed_ms: int | None = None  # of the one claim that is meant; None: whichever is in flight
    again: bool = False


class Park(Struct, frozen=True):
    """Let `seq` step aside until `data_id` comes, and claim the next one."""

    seq: int
    data_id: str


class Load(Struct, frozen=True):
    """Find out what to send for the entry that was just claimed; answered by `Loaded` or `Missing`."""

    seq: int
    claimed_ms: int


class Publish(Struct, frozen=True):
    """Send it to the vehicle, unless `deadline_ms` has passed by then; whatever comes of it answers, from `Published` on."""

    what: Loaded
    deadline_ms: int


class Watch(Struct, frozen=True):
    """Look at this owner again at that time (Unix milliseconds)."""

    at_ms: int


class Ignore(Struct, frozen=True):
    """Nothing is to be done, and why."""

    why: str


Verb = Claim | Touch | Ack | End | Release | Park  # Redis answers these, and the answer is the next event
Effect = Verb | Load | Publish | Watch | Ignore


class Answered(Struct, frozen=True):
    """Redis has carried out a verb. `reply` is what the queues' face promises for it."""

    verb: Verb
    reply: Any
    now_ms: int  # the time that the verb was given
    repeated: bool = False  # it was sent before with the same time, and that answer was lost


Seen = Woken | Heard | DeadlinePassed | Connected | Disconnected | Subscribed | Acked | DeliveryDropped
# What becomes of a claim in the hand of this process.
OfClaim = Loaded | Missing | Published | PublishLost | NotPublished | Unsendable
Event = Seen | OfClaim | Answered
