"""Event sources in Redis: wake-ups, passed deadlines, and data for which entries are parked."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog
from redis.exceptions import RedisError

from dispatcher import _metrics
from dispatcher._events import DeadlinePassed, Event, Woken
from dispatcher._payloads import Payloads
from manifold.contracts import keys
from manifold.contracts.queue_names import QueueName
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues, Wake

WAKES_PER_READ = 4  # records, each with up to a thousand owners
WAKE_BLOCK_MS = 1000
STALE_WAKE_MS = 15_000  # a wake-up that a replica has not settled for this long is taken over
DUE_BATCH_SIZE = 500
PARKED_BATCH_SIZE = 1_000  # data_ids per lookup; one lookup in the lake costs about the same for one as for many
RETRY_S = 1.0

WOKEN, DEADLINE_PASSED = Woken(), DeadlinePassed()

log = structlog.get_logger(__name__)
Offer = Callable[[QueueName, Event, Callable[[], Any]], None]


async def offer_and_wait(offer: Offer, queues: Iterable[str], event: Event) -> None:
    """Offer `event` to each queue, and wait until its effects are carried out for all of them."""
    left = 0
    handled = asyncio.Event()

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            handled.set()

    for queue in set(queues):
        left += 1
        offer(queue, event, done)
    if left:
        await handled.wait()


async def _run_forever(what: str, once: Callable[[], Awaitable[None]]) -> None:
    """Run `once` again and again; if Redis is unavailable, retry after a pause."""
    while True:
        try:
            await once()
        except RedisError as exc:
            log.warning("redis unavailable", source=what, reason=str(exc))
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))


class Wakes:
    """Owners with new entries, from the wake-up streams. A wake-up is settled once its entries are claimed."""

    def __init__(self, queues: Queues, consumer: str, offer: Offer, payloads: Payloads) -> None:
        self._queues, self._consumer, self._offer, self._payloads = queues, consumer, offer, payloads

    async def run(self) -> None:
        """Offer the unsettled wake-ups of this consumer's last run, then new ones; runs forever."""
        await _run_forever("wakes", self._read)

    async def run_stale(self) -> None:
        """Take over wake-ups of dead replicas; runs forever."""
        await _run_forever("stale wakes", self._take_over)

    async def _read(self) -> None:
        await self._queues.join_wakes()  # again after Redis was wiped
        wakes = await self._queues.claim_stale_wakes(self._consumer, idle_ms=0, count=100)
        while True:
            await self._handle(wakes)
            wakes = await self._queues.read_wakes(self._consumer, count=WAKES_PER_READ, block_ms=WAKE_BLOCK_MS, settled=wakes)

    async def _take_over(self) -> None:
        await asyncio.sleep(STALE_WAKE_MS / 2000 * random.uniform(0.8, 1.2))
        wakes = await self._queues.claim_stale_wakes(self._consumer, idle_ms=STALE_WAKE_MS, count=100)
        await self._handle(wakes)
        await self._queues.settle_wakes(wakes)

    async def _handle(self, wakes: list[Wake]) -> None:
        for wake in wakes:
            if wake.trigger is not None:
                seq, request_id, data_id = wake.trigger
                self._payloads.learn(seq, request_id, data_id)
        owners = [owner for wake in wakes for owner in wake.owners]
        _metrics.WAKES.inc(len(owners))
        await offer_and_wait(self._offer, owners, WOKEN)


class Deadlines:
    """Owners whose entry in flight may be overdue. Every replica checks them; only one can release an entry."""

    def __init__(self, queues: Queues, offer: Offer, *, every_s: float) -> None:
        self._queues, self._offer, self._every_s = queues, offer, every_s

    async def run(self) -> None:
        """Offer owners with passed deadlines; runs forever."""
        await _run_forever("deadlines", self._check_shards)

    async def _check_shards(self) -> None:
        await asyncio.sleep(self._every_s * random.uniform(0.8, 1.2))  # replicas that check at the same time duplicate work
        for shard in range(self._queues.policy.wake_shards):
            while await self._check_shard(shard) == DUE_BATCH_SIZE:
                pass

    async def _check_shard(self, shard: int) -> int:
        now = wall_clock_ms()
        owners = await self._queues.due(shard, now, DUE_BATCH_SIZE)
        await offer_and_wait(self._offer, owners, DEADLINE_PASSED)
        await self._queues.settle_due(shard, owners, now)
        return len(owners)


class ParkedEntries:
    """Parked entries, which are checked at intervals, because their data may arrive through the lake alone."""

    def __init__(self, queues: Queues, payloads: Payloads, *, every_s: float) -> None:
        self._queues, self._payloads, self._every_s = queues, payloads, every_s
        self._fresh: set[str] = set()
        self._some_are_fresh = asyncio.Event()

    def note_parked(self, data_id: str) -> None:
        """Note that an entry was just parked; its data may have arrived between the read and the parking."""
        if data_id:
            self._fresh.add(data_id)
            self._some_are_fresh.set()

    async def run(self) -> None:
        """Check all parked entries at intervals; runs forever."""
        await _run_forever("parked entries", self._check_all)

    async def run_fresh(self) -> None:
        """Check entries once more just after they were parked; runs forever."""
        await _run_forever("fresh parked entries", self._check_fresh)

    async def _check_all(self) -> None:
        await asyncio.sleep(self._every_s * random.uniform(0.8, 1.2))
        data_ids = await self._queues.waiting_data_ids(wall_clock_ms())
        for start in range(0, len(data_ids), PARKED_BATCH_SIZE):
            some = data_ids[start : start + PARKED_BATCH_SIZE]
            for data_id, has_come in zip(some, await asyncio.gather(*map(self._has_come, some)), strict=True):
                if has_come:
                    await self._queues.unpark_waiting(data_id, wall_clock_ms())

    async def _has_come(self, data_id: str) -> bool:
        """Whether data may have arrived. Entries without a trigger have an empty data_id: they are claimed and read again."""
        return not data_id or await self._payloads.read(data_id) is not None

    async def _check_fresh(self) -> None:
        await self._some_are_fresh.wait()
        self._some_are_fresh.clear()
        while self._fresh:
            data_id = next(iter(self._fresh))
            if await self._queues.redis.exists(keys.data(data_id)):
                await self._queues.unpark_waiting(data_id, wall_clock_ms())
            self._fresh.discard(data_id)
