"""Keys of an owner under which somebody has put something else."""

from collections.abc import Sequence

from redis.exceptions import ResponseError

from contracts import keys

OWNER_TYPES = ("zset", "hash", "hash", "hash", "zset", "zset", "hash")  # in the order of contracts.keys.owner_keys


def is_spoilt(reply: object) -> bool:
    """Whether Redis says that a key holds another type than it should: no wait cures that."""
    return isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE")


def spoilt_among(owner: str, types: Sequence[bytes]) -> str | None:
    """The first of the owner's keys that holds another type than it should, with the type that it has; None: there is none.

    `types` are Redis's answers to TYPE, in the order of `contracts.keys.owner_keys`.
    """
    found = zip(keys.owner_keys(owner), OWNER_TYPES, (word.decode() for word in types), strict=True)
    return next((f"{key} is a {has}" for key, wanted, has in found if has not in (wanted, "none")), None)
