"""Queue names: an owner has one queue of each flavour, and they do not block each other.

Wake-ups, the deadline index and the dispatcher's scheduler identify a queue by one string. A fanout queue is named by its owner;
an exclusive compacted queue (ECQ) by the owner with the prefix `ecq/`, which no owner begins with.
"""

from enum import StrEnum

from manifold.contracts.names import Owner

QueueName = str  # an owner is also a queue name: that of its fanout queue


class Flavour(StrEnum):
    """The kind of a queue."""

    FANOUT = "fanout"  # one entry per batch that names the owner
    ECQ = "ecq"  # exclusive and compacted: the newest message of each key


_ECQ = f"{Flavour.ECQ}/"


def fanout_queue(owner: Owner | str) -> QueueName:
    """Return the name of the owner's fanout queue."""
    return owner


def ecq_queue(owner: Owner | str) -> QueueName:
    """Return the name of the owner's exclusive compacted queue."""
    return _ECQ + owner


def is_ecq(queue: QueueName) -> bool:
    """Whether the name is that of an exclusive compacted queue."""
    return queue[:4] == _ECQ  # costs a third of `startswith`, and this function runs for each verb


def owner_of_queue(queue: QueueName) -> Owner:
    """Return the owner of a queue."""
    return Owner(queue.removeprefix(_ECQ))
