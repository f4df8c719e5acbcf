"""Who is here, as the queues know it: asked for the targets that could be released, first come first, a thousand at a time."""

from collections.abc import Sequence
from typing import Any

from manifold.contracts import keys
from manifold.queues import Queues, is_corrupt

VEHICLES_PER_ROUND_TRIP = 1000
_FIELDS = ("connected", "heard", "subscribed")


async def find_present(queues: Queues, vins: Sequence[str], enough: int, now_ms: int) -> set[str]:
    """The vehicles among `vins` that are connected and listen; at least the first `enough` of them, if there are so many.

    Raises:
        redis.RedisError: Redis is unavailable.
    """
    here: set[str] = set()
    for first in range(0, len(vins), VEHICLES_PER_ROUND_TRIP):
        if len(here) >= enough:
            break
        some = vins[first : first + VEHICLES_PER_ROUND_TRIP]
        batch = queues.batch()
        for vin in some:
            batch.call(("HMGET", keys.presence(vin), *_FIELDS), _fields)
        replies = await batch.run(tolerant=True)
        heard_after_ms = now_ms - queues.policy.presence_ms
        here.update(
            vin for vin, reply in zip(some, replies, strict=True) if not is_corrupt(reply) and _is_here(reply, heard_after_ms)
        )
    return here


def _fields(reply: Any) -> Any:
    return reply


def _is_here(fields: Sequence[bytes | None], heard_after_ms: int) -> bool:
    """As `presence_state` in queues/lua/_owner.lua."""
    connected, heard, subscribed = fields
    if subscribed in (b"no", b"qos0"):
        return False
    return connected == b"yes" or (connected == b"heard" and int(heard or 0) >= heard_after_ms)
