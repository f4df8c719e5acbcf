"""Vehicles whose certificates are revoked where EMQX is the broker: recorded in Redis, and banned by EMQX.

EMQX reads no revocation list unless it is told to, so it is their client id that is banned: an open connection ends within two
seconds, and new ones are refused, with whatever certificate. The record makes good what an EMQX that was away, or came back
without its data, has not.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis

from dispatcher._broker_api import BrokerApi
from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.settings import Settings


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a comparison of the record with EMQX has done; client ids."""

    banned: list[str]  # which EMQX had not banned
    already: int
    ended: list[str]  # taken from the record: their time is over


async def revoke(settings: Settings, redis: Redis, vin: str, until: datetime) -> bool:
    """Record that this vehicle is revoked until then, and have EMQX ban it; whether EMQX had not done so already.

    Raises:
        Retryable: it is on record, but EMQX cannot be asked or refuses. A dispatcher bans it when it next compares.
        redis.RedisError: EMQX bans it, but it is not on record.
    """
    problem = is_new = None
    try:
        async with BrokerApi(settings) as api:
            is_new = await api.ban(vin, until)
    except Retryable as exc:
        problem = exc
    await redis.hset(keys.REVOKED_VEHICLES, vin, str(int(until.timestamp())))
    if problem:
        raise problem
    return bool(is_new)


async def undo(settings: Settings, redis: Redis, vin: str) -> bool:
    """End the ban, then forget it; whether there was one at EMQX or on record.

    Raises:
        Retryable: nothing was changed: EMQX cannot be asked or refuses.
        redis.RedisError: the ban has ended, but a dispatcher that compares will ban the vehicle again.
    """
    async with BrokerApi(settings) as api:
        was_banned = await api.release(vin)
    return bool(await redis.hdel(keys.REVOKED_VEHICLES, vin)) or was_banned


async def revoked(redis: Redis) -> dict[str, datetime]:
    """Every vehicle on record, and until when it is revoked (UTC)."""
    found: Any = await redis.hgetall(keys.REVOKED_VEHICLES)
    return {vin.decode(): datetime.fromtimestamp(int(until), UTC) for vin, until in sorted(found.items())}


async def reconcile(settings: Settings, redis: Redis) -> Reconciled:
    """Have EMQX ban everything on record that has not ended. EMQX is not asked where nothing is on record.

    Raises:
        Retryable: EMQX cannot be asked or refuses.
        redis.RedisError: Redis cannot be asked.
    """
    done, now = Reconciled([], 0, []), datetime.now(UTC)
    on_record = await revoked(redis)
    if not on_record:
        return done
    already = 0
    async with BrokerApi(settings) as api:
        for vin, until in on_record.items():
            if until <= now:
                await redis.hdel(keys.REVOKED_VEHICLES, vin)
                done.ended.append(vin)
            elif not await api.ban(vin, until):
                already += 1
            elif await redis.hexists(keys.REVOKED_VEHICLES, vin):
                done.banned.append(vin)
            else:  # somebody has undone it meanwhile
                await api.release(vin)
    return Reconciled(done.banned, already, done.ended)
