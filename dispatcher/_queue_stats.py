"""Scans all queues slowly, in one dispatcher at a time: counts their entries, and ends those that have expired or are withdrawn.

Two dispatchers that scan at the same time do no harm: they count the same, and end the same entries the same way.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator
from typing import Any

import structlog
from redis.exceptions import RedisError

from dispatcher import _metrics, _outcomes
from dispatcher._withdrawals import Withdrawals
from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome
from manifold.contracts.queue_names import is_ecq
from manifold.contracts.seq import unix_ms_of, wall_clock_ms
from manifold.queues import DELETE_KEYS, Queues, QueueStats, is_corrupt, walk
from manifold.queues.verbs.ecq import Acknowledge
from manifold.queues.verbs.ends import End, ListMustEnd

KEYS_PER_SLICE = 200  # blocks Redis for about 0.3 ms
MAX_CPU_SHARE = 0.04  # of one core
LONGEST_PAUSE_S = 1.0
SCAN_INTERVAL_S = 5.0  # between two scans of a small fleet, and between two reads of another replica's statistics
LEASE_MS = 15_000
GRACE_MS = 60_000  # max clock difference between replicas: none may end an entry that another still sends

log = structlog.get_logger(__name__)


class QueueStatsCollector:
    """Collects the queue statistics while no other replica does, and sets the metrics from the latest ones."""

    def __init__(self, queues: Queues, name: str) -> None:
        self._queues, self._name = queues, name

    async def run(self) -> None:
        """Scan forever, with pauses; retry if Redis is unavailable."""
        while True:
            try:
                if await self._is_mine():
                    await self._walk()
                else:
                    _metrics.BEYOND_RECALL.clear()
                _set_metrics(await QueueStats.load(self._queues.redis))
            except RedisError as exc:
                log.warning("redis unavailable", source="queue_stats", reason=str(exc))
            await asyncio.sleep(SCAN_INTERVAL_S * random.uniform(0.8, 1.2))

    async def _is_mine(self) -> bool:
        """Acquire or renew the lease; returns whether this dispatcher holds it."""
        redis = self._queues.redis
        if await redis.set(keys.QUEUE_STATS_LEASE, self._name, nx=True, px=LEASE_MS):
            return True
        if await redis.get(keys.QUEUE_STATS_LEASE) != self._name.encode():
            return False
        return bool(await redis.pexpire(keys.QUEUE_STATS_LEASE, LEASE_MS))

    async def _walk(self) -> None:
        """Count all queues and save the totals; end expired entries and withdrawn ones on the way."""
        stats, loop = QueueStats(wall_clock_ms()), asyncio.get_running_loop()
        renew_at, seconds = loop.time() + LEASE_MS / 3000, 0.0
        withdrawals = await Withdrawals.of(self._queues)
        slices = walk(self._queues.redis, self._queues.policy, stats, keys_a_slice=KEYS_PER_SLICE, every=bool(withdrawals))
        async for named in slices:
            began = loop.time()
            if withdrawals:
                await withdrawals.withdraw(queue for queue in named if not is_ecq(queue))
            if named:
                await self._end(named)
            if began > renew_at:
                await self._is_mine()
                renew_at = began + LEASE_MS / 3000
            busy = stats.seconds - seconds + loop.time() - began
            seconds = stats.seconds
            await asyncio.sleep(min(busy * (1 / MAX_CPU_SHARE - 1), LONGEST_PAUSE_S))
        if stats.spoilt:
            log.error("corrupt keys in redis", keys=stats.spoilt, remedy=DELETE_KEYS)
        await withdrawals.finish()
        await stats.save(self._queues.redis, self._queues.policy)

    async def _end(self, owners: list[str]) -> None:
        """End the expired entries of these owners, who did not connect in time to claim them."""
        batch, now_ms = self._queues.batch(), wall_clock_ms()
        for owner in owners:
            batch.add(owner, ListMustEnd(), now_ms - GRACE_MS)
        claims = _without_corrupt(owners, await batch.run(tolerant=True))
        found = {owner: claim.must_end for owner, claim in claims if claim.must_end}
        fanout = {queue: entries for queue, entries in found.items() if not is_ecq(queue)}
        for owner, entries in fanout.items():
            records = tuple(_outcomes.forced(owner, each, now_ms) for each in entries)
            batch.add(owner, End(records, claim=False), now_ms)
        for owner, reply in _without_corrupt(fanout, await batch.run(tolerant=True)):
            for each, how in zip(found[owner], reply.outcomes, strict=True):
                if how is each.outcome:
                    _metrics.OUTCOMES.labels(how.value).inc()
        messages = [(queue, each) for queue, entries in found.items() if is_ecq(queue) for each in entries]
        for queue, each in messages:
            batch.add(queue, Acknowledge(_outcomes.expired(queue, each, now_ms), claim=False), now_ms)
        for _, reply in _without_corrupt((queue for queue, _ in messages), await batch.run(tolerant=True)):
            if reply.word == "ended":
                _metrics.OUTCOMES.labels(Outcome.EXPIRED.value).inc()


def _without_corrupt(owners: Iterable[str], replies: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The replies without those of owners with corrupt keys, which must not block the others."""
    for owner, reply in zip(owners, replies, strict=True):
        if is_corrupt(reply):
            _metrics.GIVEN_UP.inc()
            log.error("corrupt keys in redis; queue skipped", vin=owner, source="queue_stats", remedy=DELETE_KEYS)
        else:
            yield owner, reply


def _set_metrics(stats: QueueStats | None) -> None:
    if stats is None:
        return
    now_ms = wall_clock_ms()
    _metrics.QUEUE_STATS_AGE_SECONDS.set((now_ms - stats.at_ms) / 1000)
    for state, gauge in _metrics.ENTRIES.items():
        gauge.set(getattr(stats, state))
    _metrics.PRESENT.set(stats.present)
    _metrics.WAITING_VEHICLES.set(stats.queues)
    _metrics.OLDEST_PENDING_SECONDS.set(_age_s(stats.oldest, now_ms))
    for state, gauge in _metrics.ECQ_MESSAGES.items():
        gauge.set(getattr(stats, f"ecq_{state}"))
    _metrics.ECQ_WAITING_CLIENTS.set(stats.ecq_queues)
    _metrics.ECQ_OLDEST_PENDING_SECONDS.set(_age_s(stats.ecq_oldest, now_ms))


def _age_s(oldest: list[tuple[str, int]], now_ms: int) -> float:
    """The age of the first of `oldest` in seconds; 0 if there is none."""
    return (now_ms - unix_ms_of(oldest[0][1])) / 1000 if oldest else 0
