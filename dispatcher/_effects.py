"""What is to be done after an event of one queue: verbs of the queues, and others."""

from msgspec import Struct

from contracts.queue_names import QueueName
from dispatcher._events import Loaded, Verb, Woken


class Load(Struct, frozen=True):
    """Find out what to send for the entry that was just claimed; answered by `Loaded` or `Missing`."""

    seq: int
    claimed_ms: int


class Publish(Struct, frozen=True):
    """Send it to the vehicle, unless `deadline_ms` has passed by then; whatever comes of it answers, from `Published` on."""

    what: Loaded
    deadline_ms: int  # not the one by which the vehicle has to acknowledge it


class Watch(Struct, frozen=True):
    """Look at this queue again at that time (Unix milliseconds)."""

    at_ms: int


class Forward(Struct, frozen=True):
    """This event is about another queue of the same vehicle, too."""

    queue: QueueName
    event: Woken


class Ignore(Struct, frozen=True):
    """Nothing is to be done, and why."""

    why: str


Effect = Verb | Load | Publish | Watch | Forward | Ignore
