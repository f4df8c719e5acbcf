"""Revocation of vehicles' certificates with EMQX as the broker: recorded in Redis, and enforced as bans by EMQX.

EMQX reads no revocation list unless configured to, so the client id is banned: an open connection ends within two seconds, and
new ones are refused with any certificate. The record restores bans that an EMQX missed while it was down, or lost with its data.
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
    """The result of comparing the record with EMQX, in client ids."""

    banned: list[str]  # newly banned by EMQX
    already: int
    ended: list[str]  # expired, and removed from the record


async def revoke(settings: Settings, redis: Redis, vin: str, until: datetime) -> bool:
    """Record that this vehicle is revoked until then, and ban it at EMQX; returns whether the ban is new.

    Raises:
        Retryable: it is on record, but EMQX is unavailable or refuses. The next comparison by a dispatcher bans it.
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
    """End the ban, then delete the record; returns whether EMQX or the record had one.

    Raises:
        Retryable: EMQX is unavailable or refuses; nothing was changed.
        redis.RedisError: the ban has ended, but the next comparison by a dispatcher will ban the vehicle again.
    """
    async with BrokerApi(settings) as api:
        was_banned = await api.release(vin)
    return bool(await redis.hdel(keys.REVOKED_VEHICLES, vin)) or was_banned


async def revoked(redis: Redis) -> dict[str, datetime]:
    """Read every vehicle on record, and until when it is revoked (UTC)."""
    found: Any = await redis.hgetall(keys.REVOKED_VEHICLES)
    return {vin.decode(): datetime.fromtimestamp(int(until), UTC) for vin, until in sorted(found.items())}


async def reconcile(settings: Settings, redis: Redis) -> Reconciled:
    """Ban everything on record that has not expired at EMQX. EMQX is not contacted if nothing is on record.

    Raises:
        Retryable: EMQX is unavailable or refuses.
        redis.RedisError: Redis is unavailable.
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
            else:  # undone meanwhile
                await api.release(vin)
    return Reconciled(done.banned, already, done.ended)
