"""The names of queues: an owner has one queue of each flavour, and neither waits for the other.

Wake-ups, the deadline index and the dispatcher's scheduler name a queue by one string. The name of a fanout queue is its owner;
that of an exclusive compacted queue (ECQ) is the owner with `ecq/` before it, which no owner begins with.
"""

from enum import StrEnum

from manifold.contracts.names import Owner

QueueName = str  # an owner is one, too: that of its fanout queue


class Flavour(StrEnum):
    """Which kind of queue."""

    FANOUT = "fanout"  # one entry for each batch that names the owner
    ECQ = "ecq"  # exclusive and compacted: the newest message of each key


_ECQ = f"{Flavour.ECQ}/"


def fanout_queue(owner: Owner | str) -> QueueName:
    """The owner's fanout queue."""
    return owner


def ecq_queue(owner: Owner | str) -> QueueName:
    """The owner's exclusive compacted queue."""
    return _ECQ + owner


def is_ecq(queue: QueueName) -> bool:
    """Whether this is the name of an exclusive compacted queue."""
    return queue[:4] == _ECQ  # a slice costs a third of startswith, and this is asked for each verb


def owner_of_queue(queue: QueueName) -> Owner:
    """Whose queue it is."""
    return Owner(queue[4:] if is_ecq(queue) else queue)
