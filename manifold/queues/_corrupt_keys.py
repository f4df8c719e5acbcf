"""Corrupt keys: keys of a queue with the wrong type, or with an unreadable value."""

from collections.abc import Sequence

from redis.exceptions import ResponseError

from manifold.contracts import keys
from manifold.contracts.queue_names import is_ecq, owner_of_queue

DELETE_KEYS = "delete them, then run `manifold rebuild`"  # the remedy
# Prefixes of the errors of corrupt keys: a key of a wrong type, and a value that a script cannot read.
CORRUPT_KEY_ERRORS = ("WRONGTYPE", "user_script:")
OWNER_TYPES = ("zset", "hash", "hash", "hash", "zset", "zset", "hash")  # in the order of manifold.contracts.keys.owner_keys
ECQ_TYPES = ("zset", "hash", "hash", "hash", "zset", "hash", "hash", "hash")  # in the order of manifold.contracts.keys.ecq_keys


def is_corrupt(reply: object) -> bool:
    """Whether this reply is the error of a corrupt key, which a retry does not cure."""
    return isinstance(reply, ResponseError) and str(reply).startswith(CORRUPT_KEY_ERRORS)


def unreadable(exc: ValueError) -> ResponseError:
    """Build the error that takes the place of a reply that could not be parsed; `is_corrupt` is true of it."""
    return ResponseError(f"WRONGTYPE {exc}")


def keys_of(queue: str) -> list[str]:
    """All keys of the queue with this name."""
    return keys.ecq_keys(owner_of_queue(queue)) if is_ecq(queue) else keys.owner_keys(queue)


def find_corrupt_key(queue: str, types: Sequence[bytes]) -> str | None:
    """Describe the queue's first key with a wrong type, naming the key and its type; None if there is none.

    `types` are the replies to TYPE, in the order of `keys_of`.
    """
    expected_types = ECQ_TYPES if is_ecq(queue) else OWNER_TYPES
    for key, expected_type, raw_type in zip(keys_of(queue), expected_types, types, strict=True):
        actual_type = raw_type.decode()
        if actual_type not in (expected_type, "none"):  # Redis calls the type of a missing key "none"
            return f"{key} is a {actual_type}"
    return None
