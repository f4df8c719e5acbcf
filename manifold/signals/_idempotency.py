"""Exactly-once bookkeeping in Redis: nonces and idempotency keys. Each operation is one round trip for a whole group."""

import math
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.contracts.signals import keys
from manifold.queues import NO_SHARED_CODE, Script, execute
from manifold.settings import Settings
from manifold.signals._received import Accepted


class Claim(StrEnum):
    """The result of claiming a message's idempotency key and nonce."""

    NEW = "new"  # unclaimed until now; held by this message from now on
    AGAIN = "again"  # redelivery of the message that holds the key; its progress is unknown
    DUPLICATE = "duplicate"  # the signal was already processed
    BUSY = "busy"  # another message holds the key for the same signal
    REPLAY = "replay"  # the nonce was used with another body, or with the same body under another key
    CONFLICT = "conflict"  # the key was used for other content


CLAIM, RELEASE = (Script(name, prepends=NO_SHARED_CODE, package="manifold.signals") for name in ("claim", "release"))


class IdempotencyStore:
    """Nonces and idempotency keys in Redis.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable. Nothing is accepted then; every call is safe to retry.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        # Nonces must outlive messages signed by a clock that runs ahead.
        nonce_s = settings.signals_nonce_seconds + math.ceil(settings.signals_tolerance_seconds)
        self._generation_s = math.ceil(nonce_s / keys.GENERATIONS)
        self._key_s = settings.signals_idempotency_seconds

    async def claim(self, group: Sequence[Accepted]) -> list[Claim]:
        """Claim each message, in order; a new one holds its key from now on."""
        now = time.time()
        replies = await self._run([("EVALSHA", CLAIM.sha, *self._claim_arguments(message, now)) for message in group])
        return [Claim(reply.decode() if isinstance(reply, bytes) else reply) for reply in replies]

    async def done(self, group: Sequence[Accepted]) -> None:
        """Mark these signals processed: messages with their keys are duplicates from now on."""
        await self._run([("SET", _key(m), keys.done(m.content, m.holder), "EX", self._key_s) for m in group])

    async def release(self, group: Sequence[Accepted]) -> None:
        """Release the keys of signals that were not processed, so that they can be sent again."""
        await self._run(
            [("EVALSHA", RELEASE.sha, 1, _key(message), keys.held(message.content, message.holder)) for message in group]
        )

    def _claim_arguments(self, message: Accepted, now: float) -> tuple[Any, ...]:
        """Return the arguments of claim.lua after its SHA-1: the number of keys, the keys, the values.

        The keys are the idempotency key and one hash of nonces per generation, an interval of time. The current generation comes
        first, because the script stores a new nonce there. The next one is searched too: another door's clock may be ahead.
        """
        claimed_for = keys.digest(message.content), keys.digest(message.holder), self._key_s
        if message.nonce is None:
            return (1, _key(message), *claimed_for)
        newest, device_id = int(now // self._generation_s), message.parsed.device_id
        generations = (newest, newest + 1, *range(newest - keys.GENERATIONS, newest))
        hashes = [keys.nonces(device_id, generation) for generation in generations]
        kept_s = (keys.GENERATIONS + 1) * self._generation_s
        return (1 + len(hashes), _key(message), *hashes, *claimed_for, bytes.fromhex(message.nonce), _bound(message), kept_s)

    async def _run(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        replies = await execute(self._redis, commands)
        for reply in replies:
            if isinstance(reply, Exception):
                if isinstance(reply, RedisError):
                    raise reply
                raise RedisError(str(reply))
        return replies


def _bound(message: Accepted) -> bytes:
    """Digest that a nonce is bound to: the body and the idempotency key, which may come from an unsigned header."""
    return keys.digest(f"{message.body_digest} {message.key}")


def _key(message: Accepted) -> bytes:
    return keys.once(message.parsed.device_id, message.key)
