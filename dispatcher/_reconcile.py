"""Reconciles presence with the broker's sessions, and revoked vehicles with its bans, to make up for lost events.

One replica at a time reconciles. Two of them would do no harm, because a repeated event changes nothing.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import structlog
from redis.exceptions import RedisError

from dispatcher import _metrics, revocations
from dispatcher._broker_api import BrokerApi, Session
from dispatcher._sources import WOKEN, Offer, offer_and_wait
from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.contracts.events import Connected, Disconnected
from manifold.contracts.names import Owner, is_service, is_vin
from manifold.contracts.queue_names import ecq_queue, fanout_queue
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues
from manifold.settings import Settings

OWNERS_PER_READ = 500
# Connections younger than this are ignored, because their events may still arrive. It also covers a difference of the broker's
# clock.
GRACE_MS = 10_000
NO_SESSION = "the broker has no such session"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KnownPresence:
    """The presence of one vehicle in Redis. Instants are in Unix ms."""

    connected: str = ""  # `yes`, `no`, `heard`, or empty if unknown
    since_ms: int = 0  # when the last known connection began
    in_flight: bool = False  # whether the fanout queue or the compacted queue has an entry in flight


def missed_event(owner: Owner, known: KnownPresence, session: Session | None, at_ms: int) -> Connected | Disconnected | None:
    """Return the event that must have been lost, if the known presence and the broker's session disagree; None if they agree.

    `session` is the session at `at_ms`; None if the broker has none.
    """
    is_known_connected = known.connected == "yes"
    youngest_ms = at_ms - GRACE_MS  # the events of connections that began later may still arrive
    if session is None:
        is_away_without_entry = not is_known_connected and not known.in_flight  # so the lost event would change nothing
        if known.since_ms > youngest_ms or is_away_without_entry:
            return None
        return Disconnected(owner, at_ms, known.since_ms, 0, NO_SESSION)
    if session.connected_at_ms < known.since_ms:  # Redis knows a later connection
        return None
    if session.connected_at_ms > youngest_ms:  # the event may still arrive
        return None
    if not session.connected:
        if not is_known_connected:
            return None
        return Disconnected(owner, at_ms, session.connected_at_ms, session.expiry_s, "away")
    if is_known_connected and known.since_ms == session.connected_at_ms:
        return None
    is_new_session = session.clean_start or session.created_at_ms >= session.connected_at_ms
    return Connected(owner, session.connected_at_ms, is_new_session, session.expiry_s)


class Reconciler:
    """Compares Redis with the broker at the start and then at intervals. Does nothing without `emqx_api_url`."""

    def __init__(self, settings: Settings, queues: Queues, offer: Offer) -> None:
        self._settings, self._queues, self._offer = settings, queues, offer

    async def run(self) -> None:
        """Compare forever; if the broker or Redis is unavailable, retry at the next interval."""
        interval_s = self._settings.reconcile_seconds
        is_first = True
        while self._settings.emqx_api_url:
            try:
                lease_ms = int(interval_s * 900)  # a little less than the interval
                has_lease = await self._queues.redis.set(keys.RECONCILE_LEASE, 1, nx=True, px=lease_ms)
                if has_lease or is_first:  # the first time even without the lease: events before the start may be lost
                    is_first = False
                    await self._ban_revoked()
                    await self._offer_missed_events()
            except (RedisError, Retryable) as exc:
                _metrics.RECONCILE_FAILURES.inc()
                log.warning("reconciliation with the broker failed; retried at the next interval", reason=str(exc))
            await asyncio.sleep(interval_s * random.uniform(0.9, 1.1))

    async def _ban_revoked(self) -> None:
        """Ban the revoked vehicles that the broker has not banned."""
        try:
            result = await revocations.reconcile(self._settings, self._queues.redis)
        except Retryable as exc:  # it must not prevent the comparison of sessions
            _metrics.RECONCILE_FAILURES.inc()
            log.warning("revoked vehicles not reconciled with the broker's bans", reason=str(exc))
            return
        if result.banned or result.already_banned or result.expired:
            log.info(
                "revoked vehicles reconciled",
                banned=result.banned,
                already_banned=result.already_banned,
                expired=result.expired,
            )

    async def _offer_missed_events(self) -> None:
        """Compare the presence of all vehicles with the broker's sessions, and offer the events that were lost."""
        at_ms = wall_clock_ms()
        offered = 0
        async with BrokerApi(self._settings) as api:
            sessions = {s.client_id: s async for s in api.sessions() if is_vin(s.client_id) and not is_service(s.client_id)}
            async for presence in read_presence(self._queues):
                for owner, known in presence.items():
                    session = sessions.pop(owner, None)
                    if session is None and missed_event(owner, known, None, at_ms) is not None:
                        session = await api.session(owner)  # the list may lack a session that moved between two pages
                    event = missed_event(owner, known, session, at_ms)
                    if event is not None:
                        await self._offer_event(event)
                        offered += 1
        for client_id, session in sessions.items():  # the remaining sessions, of vehicles without known presence
            event = missed_event(Owner(client_id), KnownPresence(), session, at_ms)
            if event is not None:
                await self._offer_event(event)
                offered += 1
        log.info("presence reconciled with the broker", recovered_events=offered)

    async def _offer_event(self, event: Connected | Disconnected) -> None:
        """Offer an event to the vehicle's fanout queue, and wait until it is handled."""
        _metrics.RECONCILED.labels(type(event).__name__.lower()).inc()
        await offer_and_wait(self._offer, [fanout_queue(event.owner)], event)
        # The event of the vehicle's SUBSCRIBE was lost too. So wake the compacted queue: the PUBACK of its next publish shows
        # whether the vehicle is subscribed.
        if isinstance(event, Connected):
            await offer_and_wait(self._offer, [ecq_queue(event.owner)], WOKEN)


async def read_presence(queues: Queues) -> AsyncIterator[dict[Owner, KnownPresence]]:
    """Yield the known presence of all vehicles, by owner, up to `OWNERS_PER_READ` of them at a time."""
    owners: list[Owner] = []
    async for key in queues.redis.scan_iter(match=f"{keys.OF_OWNERS}*}}:presence", count=OWNERS_PER_READ):
        owner, *_ = keys.owner_of(key.decode())
        owners.append(owner)
        if len(owners) == OWNERS_PER_READ:
            yield await _presence_of(queues, owners)
            owners = []
    yield await _presence_of(queues, owners)


async def _presence_of(queues: Queues, owners: list[Owner]) -> dict[Owner, KnownPresence]:
    """Read the presence of these owners in one round trip."""
    pipe = queues.redis.pipeline(transaction=False)
    for owner in owners:
        pipe.hmget(keys.presence(owner), ["connected", "since"])
        pipe.exists(keys.inflight(owner), keys.ecq_inflight(owner))
    replies: list[Any] = await pipe.execute()
    rows = zip(owners, replies[0::2], replies[1::2], strict=True)
    return {owner: _parse_presence(fields, in_flight_count) for owner, fields, in_flight_count in rows}


def _parse_presence(fields: list[bytes | None], in_flight_count: int) -> KnownPresence:
    connected, since = fields
    return KnownPresence((connected or b"").decode(), int(since or 0), in_flight=in_flight_count > 0)


__all__ = ["KnownPresence", "Reconciler", "missed_event", "read_presence"]
