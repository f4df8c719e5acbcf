"""Each signal once: nonces and idempotency keys in Redis. Every verb is one round trip for a whole group of messages."""

import math
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.contracts.signals import keys
from manifold.queues import NOBODYS, Script, execute
from manifold.settings import Settings
from manifold.signals._received import Accepted


class Claim(StrEnum):
    """What Redis knows of a message."""

    NEW = "new"  # nothing: it is this message's now
    AGAIN = "again"  # this very message has come before, and nobody knows how far it got
    DUPLICATE = "duplicate"  # the signal was processed
    BUSY = "busy"  # another message has the same signal in hand
    REPLAY = "replay"  # the nonce is that of another body, or of the same under another key
    CONFLICT = "conflict"  # the key is that of another content


CLAIM, RELEASE = (Script(name, shares=NOBODYS, package="manifold.signals") for name in ("claim", "release"))


class IdempotencyStore:
    """Nonces and idempotency keys.

    Raises:
        redis.RedisError: from every method: Redis is away. Nothing is let through then; asking again is safe.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        # A nonce outlives its message also where that was signed by a clock that is ahead.
        nonce_s = settings.signals_nonce_seconds + math.ceil(settings.signals_tolerance_seconds)
        self._generation_s = math.ceil(nonce_s / keys.GENERATIONS)
        self._key_s = settings.signals_idempotency_seconds

    async def claim(self, group: Sequence[Accepted]) -> list[Claim]:
        """What Redis knows of each, in their order; each that is new is held by its message from now on."""
        now = time.time()
        replies = await self._run([("EVALSHA", CLAIM.sha, *self._claim_of(message, now)) for message in group])
        return [Claim(reply.decode() if isinstance(reply, bytes) else reply) for reply in replies]

    async def done(self, group: Sequence[Accepted]) -> None:
        """These signals were processed: what has their keys is a duplicate from now on."""
        await self._run([("SET", _key(m), keys.done(m.content, m.holder), "EX", self._key_s) for m in group])

    async def release(self, group: Sequence[Accepted]) -> None:
        """These signals were not processed: who sends them again may."""
        await self._run(
            [("EVALSHA", RELEASE.sha, 1, _key(message), keys.held(message.content, message.holder)) for message in group]
        )

    def _claim_of(self, message: Accepted, now: float) -> tuple[Any, ...]:
        """A nonce is noted in this generation, and looked for in those before it, and the next: another clock may be ahead."""
        about = keys.digest(message.content), keys.digest(message.holder), self._key_s
        if message.nonce is None:
            return (1, _key(message), *about)
        newest, device_id = int(now // self._generation_s), message.said.device_id
        places = (newest, newest + 1, *range(newest - keys.GENERATIONS, newest))
        hashes = [keys.nonces(device_id, generation) for generation in places]
        kept_s = (keys.GENERATIONS + 1) * self._generation_s
        return (1 + len(hashes), _key(message), *hashes, *about, bytes.fromhex(message.nonce), _bound(message), kept_s)

    async def _run(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        replies = await execute(self._redis, commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply if isinstance(reply, RedisError) else RedisError(str(reply))
        return replies


def _bound(message: Accepted) -> bytes:
    """The digest of what a nonce is good for: these bytes under this key, which may be a header, and is not signed."""
    return keys.digest(f"{message.body_digest} {message.key}")


def _key(message: Accepted) -> bytes:
    return keys.once(message.said.device_id, message.key)
