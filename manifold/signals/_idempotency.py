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
    AGAIN = "again"  # redelivery of the message that holds the key; how far it was processed before is unknown
    DUPLICATE = "duplicate"  # the signal was already processed
    BUSY = "busy"  # another message holds the key for the same signal
    REPLAY = "replay"  # the nonce was used with another body, or with the same body under another key
    CONFLICT = "conflict"  # the key was used for other content


CLAIM = Script("claim", prepends=NO_SHARED_CODE, package="manifold.signals")
RELEASE = Script("release", prepends=NO_SHARED_CODE, package="manifold.signals")


class IdempotencyStore:
    """Nonces and idempotency keys in Redis.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable. Then no message may be accepted. Every call is safe to
        retry.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        # Nonces must outlive messages signed by a clock that runs ahead.
        nonce_s = settings.signals_nonce_seconds + math.ceil(settings.signals_tolerance_seconds)
        self._generation_s = math.ceil(nonce_s / keys.GENERATIONS)
        self._key_s = settings.signals_idempotency_seconds

    async def claim(self, group: Sequence[Accepted]) -> list[Claim]:
        """Claim key and nonce of each message, and return the results in order. A new message holds its key from now on."""
        now = time.time()
        replies = await self._run([("EVALSHA", CLAIM.sha, *self._claim_arguments(message, now)) for message in group])
        return [Claim(reply.decode() if isinstance(reply, bytes) else reply) for reply in replies]

    async def mark_processed(self, group: Sequence[Accepted]) -> None:
        """Mark these signals processed: messages with their keys are duplicates from now on."""
        await self._run(
            [("SET", _key(message), keys.done(message.signal_digest, message.holder), "EX", self._key_s) for message in group]
        )

    async def release(self, group: Sequence[Accepted]) -> None:
        """Release the keys of signals that were not processed, so that a retry can claim them again."""
        await self._run(
            [("EVALSHA", RELEASE.sha, 1, _key(message), keys.claimed(message.signal_digest, message.holder)) for message in group]
        )

    def _claim_arguments(self, message: Accepted, now: float) -> tuple[Any, ...]:
        """Return the arguments of claim.lua that follow its SHA-1: the number of keys, the keys, the values.

        The keys are the idempotency key and, if the message has a nonce, one Redis hash of nonces per generation. A generation is
        an interval of time. The hash of the current generation comes first, because the script stores a new nonce in that hash.
        The hash of the next generation follows, because a door whose clock is ahead stores nonces there already.
        """
        key_values = keys.digest(message.signal_digest), keys.digest(message.holder), self._key_s
        if message.nonce is None:
            return (1, _key(message), *key_values)
        current, device_id = int(now // self._generation_s), message.parsed.device_id
        earlier = range(current - keys.GENERATIONS, current)
        generations = (current, current + 1, *earlier)
        hashes = [keys.nonces(device_id, generation) for generation in generations]
        hash_retention_s = (keys.GENERATIONS + 1) * self._generation_s
        nonce_values = bytes.fromhex(message.nonce), _nonce_binding(message), hash_retention_s
        return (1 + len(hashes), _key(message), *hashes, *key_values, *nonce_values)

    async def _run(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Run the commands in one round trip; return their replies, or raise the first error among them as a RedisError."""
        replies = await execute(self._redis, commands)
        for reply in replies:
            if isinstance(reply, Exception):
                if isinstance(reply, RedisError):
                    raise reply
                raise RedisError(str(reply))
        return replies


def _nonce_binding(message: Accepted) -> bytes:
    """Return the digest to which a nonce is bound: of the body and of the idempotency key.

    The signature covers the body but not the header of the idempotency key. Without the key in the digest, a captured message
    could be sent again under another key.
    """
    return keys.digest(f"{message.body_digest} {message.key}")


def _key(message: Accepted) -> bytes:
    return keys.idempotency(message.parsed.device_id, message.key)
