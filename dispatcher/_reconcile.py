"""Reconciles presence with the broker's sessions, and revoked vehicles with its bans, to make up for lost events.

One replica at a time does it. Two would do no harm: a repeated event changes nothing.
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

OWNERS_PER_LOOK = 500
GRACE_MS = 10_000  # connections younger than this are left to their own events; also covers a difference of the broker's clock
UNKNOWN = "the broker has no such session"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """The presence of one vehicle in Redis. Instants are in Unix ms."""

    connected: str = ""  # `yes`, `no`, `heard`, or empty if unknown
    since_ms: int = 0  # when the last known connection began
    in_flight: bool = False  # in either queue


def missed_event(owner: Owner, known: Known, session: Session | None, at_ms: int) -> Connected | Disconnected | None:
    """Return the event that was lost, if `known` disagrees with the session at `at_ms`; None if they agree."""
    if session is None:
        if known.since_ms > at_ms - GRACE_MS or (known.connected != "yes" and not known.in_flight):
            return None
        return Disconnected(owner, at_ms, known.since_ms, 0, UNKNOWN)
    if session.connected_at_ms < known.since_ms or session.connected_at_ms > at_ms - GRACE_MS:
        return None
    if not session.connected:
        gone = known.connected == "yes" and known.since_ms <= session.connected_at_ms
        return Disconnected(owner, at_ms, session.connected_at_ms, session.expiry_s, "away") if gone else None
    if known.connected == "yes" and known.since_ms == session.connected_at_ms:
        return None
    is_new = session.clean_start or session.created_at_ms >= session.connected_at_ms
    return Connected(owner, session.connected_at_ms, is_new, session.expiry_s)


class Reconciler:
    """Compares at start and then at intervals. Does nothing without `emqx_api_url`."""

    def __init__(self, settings: Settings, queues: Queues, offer: Offer) -> None:
        self._settings, self._queues, self._offer = settings, queues, offer

    async def run(self) -> None:
        """Compare forever; if the broker or Redis is unavailable, retry at the next interval."""
        every_s, at_start = self._settings.reconcile_seconds, True
        while self._settings.emqx_api_url:
            try:
                is_mine = await self._queues.redis.set(keys.RECONCILE_LEASE, 1, nx=True, px=int(every_s * 900))
                if is_mine or at_start:  # events before the start may be lost
                    at_start = False
                    await self._ban_revoked()
                    await self._offer_missed_events()
            except (RedisError, Retryable) as exc:
                _metrics.RECONCILE_FAILURES.inc()
                log.warning("reconciliation with the broker failed", reason=str(exc))
            await asyncio.sleep(every_s * random.uniform(0.9, 1.1))

    async def _ban_revoked(self) -> None:
        try:
            done = await revocations.reconcile(self._settings, self._queues.redis)
        except Retryable as exc:  # must not prevent the comparison of sessions
            _metrics.RECONCILE_FAILURES.inc()
            log.warning("reconciliation of revoked vehicles failed", reason=str(exc))
            return
        if done.banned or done.already or done.ended:
            log.info("revoked vehicles reconciled", banned=done.banned, already_banned=done.already, expired=done.ended)

    async def _offer_missed_events(self) -> None:
        at_ms = wall_clock_ms()
        async with BrokerApi(self._settings) as api:
            sessions = {s.client_id: s async for s in api.sessions() if is_vin(s.client_id) and not is_service(s.client_id)}
            events = 0
            async for found in read_presence(self._queues):
                for owner, known in found.items():
                    session = sessions.pop(owner, None)
                    if session is None and missed_event(owner, known, None, at_ms) is not None:
                        session = await api.session(owner)  # it may have moved between two pages of the list
                    events += await self._offer_event(missed_event(owner, known, session, at_ms))
        for client_id, session in sessions.items():  # sessions of vehicles without presence
            events += await self._offer_event(missed_event(Owner(client_id), Known(), session, at_ms))
        log.info("presence reconciled", events=events)

    async def _offer_event(self, event: Connected | Disconnected | None) -> int:
        if event is None:
            return 0
        _metrics.RECONCILED.labels(type(event).__name__.lower()).inc()
        await offer_and_wait(self._offer, [fanout_queue(event.owner)], event)
        if isinstance(event, Connected):  # its SUBSCRIBE was lost, too: the broker's PUBACK shows whether it is subscribed
            await offer_and_wait(self._offer, [ecq_queue(event.owner)], WOKEN)
        return 1


async def read_presence(queues: Queues) -> AsyncIterator[dict[Owner, Known]]:
    """Yield the known presence of every vehicle, by owner, a few hundred at a time."""
    some: list[Owner] = []
    async for key in queues.redis.scan_iter(match=f"{keys.OF_OWNERS}*}}:presence", count=OWNERS_PER_LOOK):
        some.append(keys.owner_of(key.decode())[0])
        if len(some) == OWNERS_PER_LOOK:
            yield await _presence_of(queues, some)
            some = []
    yield await _presence_of(queues, some)


async def _presence_of(queues: Queues, owners: list[Owner]) -> dict[Owner, Known]:
    pipe = queues.redis.pipeline(transaction=False)
    for owner in owners:
        pipe.hmget(keys.presence(owner), ["connected", "since"])
        pipe.exists(keys.inflight(owner), keys.ecq_inflight(owner))
    replies: list[Any] = await pipe.execute()
    return {owner: _parse_presence(*replies[2 * n : 2 * n + 2]) for n, owner in enumerate(owners)}


def _parse_presence(presence: list[bytes | None], in_flight: int) -> Known:
    connected, since = presence
    return Known((connected or b"").decode(), int(since or 0), bool(in_flight))


__all__ = ["Known", "Reconciler", "missed_event", "read_presence"]
