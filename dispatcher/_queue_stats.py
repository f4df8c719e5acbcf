"""Scans all queues slowly, in one dispatcher at a time: counts their entries, and ends those that have expired or are withdrawn.

Two dispatchers that scan at the same time do no harm, because they count the same entries and end them with the same outcomes.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from manifold.queues.verbs.claims import MustEnd
from manifold.queues.verbs.ecq import Acknowledge
from manifold.queues.verbs.ends import End, ListMustEnd

KEYS_PER_SLICE = 200  # keys that are scanned at once, which blocks Redis for about 0.3 ms
MAX_CPU_SHARE = 0.04  # fraction of one core that a scan may use
MAX_PAUSE_S = 1.0  # pause between two slices
SCAN_INTERVAL_S = 5.0  # pause between two scans, and between two reads of another replica's statistics
LEASE_MS = 15_000
LEASE_RENEWAL_S = LEASE_MS / 3000
MAX_SKEW_MS = 60_000  # maximum clock difference between replicas, so that none ends an entry that another still sends

log = structlog.get_logger(__name__)


class QueueStatsCollector:
    """Collects the queue statistics, unless another replica does, and sets the metrics from the latest statistics."""

    def __init__(self, queues: Queues, name: str) -> None:
        self._queues, self._name = queues, name

    async def run(self) -> None:
        """Scan at intervals, forever. If Redis is unavailable, the next interval tries again."""
        while True:
            try:
                if await self._acquire_lease():
                    await self._scan()
                else:
                    _metrics.BEYOND_RECALL.clear()  # only the replica that scans exports this metric
                _set_metrics(await QueueStats.load(self._queues.redis))
            except RedisError as exc:
                log.warning("redis unavailable; queue statistics not updated", reason=str(exc))
            await asyncio.sleep(SCAN_INTERVAL_S * random.uniform(0.8, 1.2))

    async def _acquire_lease(self) -> bool:
        """Acquire or renew the lease; returns whether this dispatcher holds it."""
        redis = self._queues.redis
        if await redis.set(keys.QUEUE_STATS_LEASE, self._name, nx=True, px=LEASE_MS):
            return True
        if await redis.get(keys.QUEUE_STATS_LEASE) != self._name.encode():
            return False
        return bool(await redis.pexpire(keys.QUEUE_STATS_LEASE, LEASE_MS))

    async def _scan(self) -> None:
        """Count all queues and save the totals; on the way, end the expired and the withdrawn entries."""
        loop = asyncio.get_running_loop()
        stats = QueueStats(wall_clock_ms())
        renew_at = loop.time() + LEASE_RENEWAL_S
        last_scan_s = 0.0  # `stats.seconds` after the last slice
        withdrawals = await Withdrawals.of(self._queues)
        slices = walk(
            self._queues.redis, self._queues.policy, stats, keys_a_slice=KEYS_PER_SLICE, all_fanout_queues=bool(withdrawals)
        )
        async for queues in slices:
            started = loop.time()
            if withdrawals:
                await withdrawals.withdraw(queue for queue in queues if not is_ecq(queue))
            if queues:
                await self._end_expired(queues)
            if started > renew_at:
                await self._acquire_lease()  # if another replica has it by now, go on: two scans do no harm
                renew_at = started + LEASE_RENEWAL_S
            scan_s = stats.seconds - last_scan_s
            last_scan_s = stats.seconds
            busy_s = scan_s + loop.time() - started
            pause_s = busy_s * (1 / MAX_CPU_SHARE - 1)  # so that the busy time is this share of busy time and pause
            await asyncio.sleep(min(pause_s, MAX_PAUSE_S))
        if stats.spoilt:
            log.error("corrupt keys in redis", keys=stats.spoilt, remedy=DELETE_KEYS)
        await withdrawals.finish()
        await stats.save(self._queues.redis, self._queues.policy)

    async def _end_expired(self, queues: list[str]) -> None:
        """End the expired entries of these queues, whose owners did not connect in time to claim them."""
        batch, now_ms = self._queues.batch(), wall_clock_ms()
        for queue in queues:
            batch.add(queue, ListMustEnd(), now_ms - MAX_SKEW_MS)
        replies = _without_corrupt(queues, await batch.run(tolerant=True))
        expired: dict[str, tuple[MustEnd, ...]] = {queue: reply.must_end for queue, reply in replies if reply.must_end}
        await self._end_entries({queue: entries for queue, entries in expired.items() if not is_ecq(queue)}, now_ms)
        await self._end_ecq_messages({queue: messages for queue, messages in expired.items() if is_ecq(queue)}, now_ms)

    async def _end_entries(self, expired: Mapping[str, Sequence[MustEnd]], now_ms: int) -> None:
        """End these entries of fanout queues."""
        batch = self._queues.batch()
        for queue, entries in expired.items():
            records = tuple(_outcomes.forced_outcome(queue, entry, now_ms) for entry in entries)
            batch.add(queue, End(records, claim=False), now_ms)
        for queue, reply in _without_corrupt(expired, await batch.run(tolerant=True)):
            for entry, outcome in zip(expired[queue], reply.outcomes, strict=True):
                if outcome is entry.outcome:  # otherwise the entry is in flight, or had ended before
                    _metrics.OUTCOMES.labels(outcome.value).inc()

    async def _end_ecq_messages(self, expired: Mapping[str, Sequence[MustEnd]], now_ms: int) -> None:
        """End these messages of compacted queues."""
        batch = self._queues.batch()
        queue_of_each: list[str] = []
        for queue, messages in expired.items():
            for message in messages:
                batch.add(queue, Acknowledge(_outcomes.expiry_record(queue, message, now_ms), claim=False), now_ms)
                queue_of_each.append(queue)
        for _, reply in _without_corrupt(queue_of_each, await batch.run(tolerant=True)):
            if reply.word == "ended":
                _metrics.OUTCOMES.labels(Outcome.EXPIRED.value).inc()


def _without_corrupt(queues: Iterable[str], replies: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each queue with its reply, without the queues that have corrupt keys, which must not block the others."""
    for queue, reply in zip(queues, replies, strict=True):
        if is_corrupt(reply):
            _metrics.GIVEN_UP.inc()
            log.error("corrupt keys in redis; queue skipped", queue=queue, source="queue_stats", remedy=DELETE_KEYS)
        else:
            yield queue, reply


def _set_metrics(stats: QueueStats | None) -> None:
    """Set the metrics from the latest statistics; None if no replica has finished a scan yet."""
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
    """The age in seconds of the first entry in `oldest`, a list of (owner, seq); 0 if the list is empty."""
    if not oldest:
        return 0
    _, seq = oldest[0]
    return (now_ms - unix_ms_of(seq)) / 1000
