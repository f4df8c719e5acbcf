"""Spoilt keys: keys of a queue that hold another type than they should, or a value that cannot be read."""

from collections.abc import Sequence

from redis.exceptions import ResponseError

from manifold.contracts import keys
from manifold.contracts.queue_names import is_ecq, owner_of_queue

SPOILT = ("WRONGTYPE", "user_script:")  # so Redis's word begins: another type; or what a script reads there is no seq, no number
OWNER_TYPES = ("zset", "hash", "hash", "hash", "zset", "zset", "hash")  # in the order of manifold.contracts.keys.owner_keys
ECQ_TYPES = ("zset", "hash", "hash", "hash", "zset", "hash", "hash", "hash")  # in the order of manifold.contracts.keys.ecq_keys


def is_spoilt(reply: object) -> bool:
    """Whether this reply is the error of a spoilt key. To try again does not help."""
    return isinstance(reply, ResponseError) and str(reply).startswith(SPOILT)


def unreadable(exc: ValueError) -> ResponseError:
    """The error that takes the place of a reply whose content cannot be read; `is_spoilt` is true of it."""
    return ResponseError(f"WRONGTYPE {exc}")


def keys_of(queue: str) -> list[str]:
    """All keys of a queue, by its name."""
    return keys.ecq_keys(owner_of_queue(queue)) if is_ecq(queue) else keys.owner_keys(queue)


def spoilt_among(queue: str, types: Sequence[bytes]) -> str | None:
    """A text that names the first of the queue's keys with a wrong type, and that type; None if there is none.

    `types` are Redis's answers to TYPE, in the order of `keys_of`.
    """
    wanted_types = ECQ_TYPES if is_ecq(queue) else OWNER_TYPES
    found = zip(keys_of(queue), wanted_types, (word.decode() for word in types), strict=True)
    return next((f"{key} is a {has}" for key, wanted, has in found if has not in (wanted, "none")), None)
