"""The effects that follow from an event of one queue. The verbs of `manifold.queues.verbs` are effects, too."""

from msgspec import Struct

from dispatcher._events import Loaded, Verb, Woken
from manifold.contracts.queue_names import QueueName


class Load(Struct, frozen=True):
    """Read what the claimed entry sends; answered by `Loaded` or `Missing`."""

    seq: int
    claimed_ms: int


class Publish(Struct, frozen=True):
    """Send it to the vehicle, unless `send_by` has passed. `Published` or one of the events after it answers."""

    what: Loaded
    send_by: int  # by `steady_ms`
    takes: int = 0  # bytes of the largest packet that the vehicle takes; 0: any, or it is not known


class Watch(Struct, frozen=True):
    """Look at this queue again at that time (Unix ms)."""

    at_ms: int


class Forward(Struct, frozen=True):
    """Offer this event to another queue of the same vehicle, too."""

    queue: QueueName
    event: Woken


class Ignore(Struct, frozen=True):
    """Do nothing, for this reason."""

    why: str


Effect = Verb | Load | Publish | Watch | Forward | Ignore
