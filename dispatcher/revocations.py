"""Revocation of vehicles' certificates with EMQX as the broker: recorded in Redis, and enforced as bans by EMQX.

Unless it is configured to do so, EMQX reads no revocation list. So the client id is banned: an open connection ends within two
seconds, and new connections are refused with any certificate. The record in Redis restores bans that an EMQX missed while it was
down, or lost with its data.
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
    """The result of comparing the record with EMQX."""

    banned: list[str]  # client ids that EMQX has newly banned
    already_banned: int  # number of client ids that were banned already
    expired: list[str]  # client ids whose revocation has expired, and that were removed from the record


async def revoke(settings: Settings, redis: Redis, vin: str, until: datetime) -> bool:
    """Record that this vehicle is revoked until the given time, and ban it at EMQX; returns whether the ban is new.

    Raises:
        Retryable: the revocation is recorded, but EMQX is unavailable or refuses. The next comparison by a dispatcher bans the
            vehicle.
        redis.RedisError: the revocation is not recorded, although EMQX may have banned the vehicle.
    """
    is_new = False
    problem: Retryable | None = None
    try:
        async with BrokerApi(settings) as api:
            is_new = await api.ban(vin, until)
    except Retryable as exc:
        problem = exc  # raised below, once the revocation is recorded
    await redis.hset(keys.REVOKED_VEHICLES, vin, str(int(until.timestamp())))
    if problem is not None:
        raise problem
    return is_new


async def undo(settings: Settings, redis: Redis, vin: str) -> bool:
    """End the ban and then delete the record; returns whether there was a ban or a record.

    Raises:
        Retryable: EMQX is unavailable or refuses; nothing was changed.
        redis.RedisError: the ban has ended, but the next comparison by a dispatcher will ban the vehicle again.
    """
    async with BrokerApi(settings) as api:
        was_banned = await api.unban(vin)
    was_recorded = bool(await redis.hdel(keys.REVOKED_VEHICLES, vin))
    return was_banned or was_recorded


async def revoked(redis: Redis) -> dict[str, datetime]:
    """Read the recorded vehicles, each with the time until which it is revoked (UTC)."""
    record: Any = await redis.hgetall(keys.REVOKED_VEHICLES)
    return {vin.decode(): datetime.fromtimestamp(int(until), UTC) for vin, until in sorted(record.items())}


async def reconcile(settings: Settings, redis: Redis) -> Reconciled:
    """Ban at EMQX all recorded vehicles whose revocation has not expired. If none is recorded, EMQX is not contacted.

    Raises:
        Retryable: EMQX is unavailable or refuses.
        redis.RedisError: Redis is unavailable.
    """
    recorded = await revoked(redis)
    if not recorded:
        return Reconciled([], 0, [])
    banned: list[str] = []
    expired: list[str] = []
    already_banned = 0
    now = datetime.now(UTC)
    async with BrokerApi(settings) as api:
        for vin, until in recorded.items():
            if until <= now:
                await redis.hdel(keys.REVOKED_VEHICLES, vin)
                expired.append(vin)
            elif not await api.ban(vin, until):
                already_banned += 1
            elif await redis.hexists(keys.REVOKED_VEHICLES, vin):
                banned.append(vin)
            else:  # the revocation was undone while the vehicle was being banned
                await api.unban(vin)
    return Reconciled(banned, already_banned, expired)
