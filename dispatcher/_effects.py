"""The effects of an event on one queue. The verbs of `manifold.queues.verbs` are effects, too."""

from msgspec import Struct

from dispatcher._events import Loaded, Verb, Woken
from manifold.contracts.queue_names import QueueName


class Load(Struct, frozen=True):
    """Read trigger and payload of the claimed entry; answered by `Loaded` or `Missing`."""

    seq: int
    claimed_ms: int


class Publish(Struct, frozen=True):
    """Publish the entry to the vehicle, unless `send_by` has passed. `Published` or one of the events after it answers."""

    what: Loaded
    send_by: int  # by `monotonic_ms`
    max_packet_bytes: int = 0  # the largest packet in bytes that the vehicle accepts; 0: no limit, or unknown


class Watch(Struct, frozen=True):
    """Check this queue again at that time (Unix ms)."""

    at_ms: int


class Forward(Struct, frozen=True):
    """Also offer this event to another queue of the same vehicle."""

    queue: QueueName
    event: Woken


class Ignore(Struct, frozen=True):
    """Do nothing, for this reason."""

    why: str


Effect = Verb | Load | Publish | Watch | Forward | Ignore
