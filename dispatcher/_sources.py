"""Event sources in Redis: wake-ups, passed deadlines, and the arrival of data for which entries are parked."""

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

WAKES_PER_READ = 4  # wake-up records, each with up to a thousand owners
WAKE_BLOCK_MS = 1000
STALE_WAKE_MS = 15_000  # another replica takes over a wake-up that was not settled within this time
DUE_BATCH_SIZE = 500
PARKED_BATCH_SIZE = 1_000  # data_ids per lookup; a lookup in the lake costs about the same for one data_id as for many
RETRY_S = 1.0

WOKEN, DEADLINE_PASSED = Woken(), DeadlinePassed()

log = structlog.get_logger(__name__)
Offer = Callable[[QueueName, Event, Callable[[], Any]], None]


async def offer_and_wait(offer: Offer, queues: Iterable[str], event: Event) -> None:
    """Offer `event` to each queue, and wait until all queues have handled it."""
    pending = 0
    handled = asyncio.Event()

    def done() -> None:
        nonlocal pending
        pending -= 1
        if not pending:
            handled.set()

    for queue in set(queues):
        pending += 1
        offer(queue, event, done)
    if pending:
        await handled.wait()


async def _run_forever(source: str, run: Callable[[], Awaitable[None]]) -> None:
    """Call `run` again and again; if Redis is unavailable, wait before the next call."""
    while True:
        try:
            await run()
        except RedisError as exc:
            log.warning("redis unavailable; event source interrupted", source=source, reason=str(exc))
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))


class Wakes:
    """Owners with new entries, from the wake-up streams. A wake-up is settled once its entries are claimed."""

    def __init__(self, queues: Queues, consumer: str, offer: Offer, payloads: Payloads) -> None:
        self._queues, self._consumer, self._offer, self._payloads = queues, consumer, offer, payloads

    async def run(self) -> None:
        """Offer some wake-ups that are not settled yet, such as those of an earlier process, and then new ones, forever."""
        await _run_forever("wakes", self._read)

    async def run_stale(self) -> None:
        """Take over the wake-ups of dead replicas, forever."""
        await _run_forever("stale wakes", self._take_over)

    async def _read(self) -> None:
        """Handle wake-ups until an error is raised."""
        await self._queues.join_wakes()  # again after each error, because Redis may have been emptied
        # With an idle time of 0, unsettled wake-ups of any age are claimed, even if other replicas are handling them.
        wakes = await self._queues.claim_stale_wakes(self._consumer, idle_ms=0, count=100)
        while True:
            await self._handle(wakes)
            wakes = await self._queues.read_wakes(self._consumer, count=WAKES_PER_READ, block_ms=WAKE_BLOCK_MS, settled=wakes)

    async def _take_over(self) -> None:
        """Wait about half of `STALE_WAKE_MS`, and handle the wake-ups that are stale then."""
        await asyncio.sleep(STALE_WAKE_MS / 2000 * random.uniform(0.8, 1.2))
        wakes = await self._queues.claim_stale_wakes(self._consumer, idle_ms=STALE_WAKE_MS, count=100)
        await self._handle(wakes)
        await self._queues.settle_wakes(wakes)

    async def _handle(self, wakes: list[Wake]) -> None:
        """Offer the owners that these wake-ups name, and wait until their events are handled."""
        for wake in wakes:
            if wake.trigger is not None:
                seq, request_id, data_id = wake.trigger
                self._payloads.learn(seq, request_id, data_id)
        owners = [owner for wake in wakes for owner in wake.owners]
        _metrics.WAKES.inc(len(owners))
        await offer_and_wait(self._offer, owners, WOKEN)


class Deadlines:
    """Offers owners whose entry in flight may be overdue. Each replica checks all deadlines, but only one releases an entry."""

    def __init__(self, queues: Queues, offer: Offer, *, interval_s: float) -> None:
        self._queues, self._offer, self._interval_s = queues, offer, interval_s

    async def run(self) -> None:
        """Offer the owners whose deadlines have passed, forever."""
        await _run_forever("deadlines", self._check_shards)

    async def _check_shards(self) -> None:
        """Wait for the interval, and check all shards."""
        # Vary the interval, because replicas that check at the same time duplicate work.
        await asyncio.sleep(self._interval_s * random.uniform(0.8, 1.2))
        for shard in range(self._queues.policy.wake_shards):
            may_have_more = True
            while may_have_more:
                may_have_more = await self._check_shard(shard) == DUE_BATCH_SIZE

    async def _check_shard(self, shard: int) -> int:
        """Offer up to `DUE_BATCH_SIZE` owners of a shard; returns their number."""
        now = wall_clock_ms()
        owners = await self._queues.due(shard, now, DUE_BATCH_SIZE)
        await offer_and_wait(self._offer, owners, DEADLINE_PASSED)
        await self._queues.settle_due(shard, owners, now)
        return len(owners)


class ParkedEntries:
    """Checks at intervals whether the data of parked entries has arrived, because it may arrive in the lake only."""

    def __init__(self, queues: Queues, payloads: Payloads, *, interval_s: float) -> None:
        self._queues, self._payloads, self._interval_s = queues, payloads, interval_s
        self._just_parked: set[str] = set()  # data_ids
        self._has_just_parked = asyncio.Event()

    def check_soon(self, data_id: str) -> None:
        """Check an entry soon after it was parked, because its data may have arrived between the read and the parking."""
        if data_id:  # empty if the trigger of the entry was not found
            self._just_parked.add(data_id)
            self._has_just_parked.set()

    async def run(self) -> None:
        """Check all parked entries at intervals, forever."""
        await _run_forever("parked entries", self._check_all)

    async def run_fresh(self) -> None:
        """Check each entry once soon after it was parked, forever."""
        await _run_forever("fresh parked entries", self._check_fresh)

    async def _check_all(self) -> None:
        """Wait for the interval, and unpark the entries whose data has arrived in Redis or in the lake."""
        await asyncio.sleep(self._interval_s * random.uniform(0.8, 1.2))
        data_ids = await self._queues.waiting_data_ids(wall_clock_ms())
        for start in range(0, len(data_ids), PARKED_BATCH_SIZE):
            batch = data_ids[start : start + PARKED_BATCH_SIZE]
            have_arrived = await asyncio.gather(*map(self._has_arrived, batch))
            for data_id, has_arrived in zip(batch, have_arrived, strict=True):
                if has_arrived:
                    await self._queues.unpark_waiting(data_id, wall_clock_ms())

    async def _has_arrived(self, data_id: str) -> bool:
        """Whether the data may have arrived.

        Entries whose trigger was not found are parked with an empty data_id. For them, the answer is always true, so that they
        are claimed and their trigger is read again.
        """
        return not data_id or await self._payloads.read(data_id) is not None

    async def _check_fresh(self) -> None:
        """Wait for entries that were just parked, and unpark those whose data is in Redis."""
        await self._has_just_parked.wait()
        self._has_just_parked.clear()
        while self._just_parked:
            data_id = next(iter(self._just_parked))
            if await self._queues.redis.exists(keys.data(data_id)):
                await self._queues.unpark_waiting(data_id, wall_clock_ms())
            # After the check: if Redis fails, the data_id stays, and is checked again when the next entry is parked.
            self._just_parked.discard(data_id)
