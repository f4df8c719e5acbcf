"""Moves the dispatchers' outcomes from Redis into the journal."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog
from redis.exceptions import RedisError

from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues
from manifold.recorder import _metrics

BLOCK_MS = 500
STALE_MS = 60_000  # a recorder that has not settled its outcomes for this long is considered dead
STALE_CHECK_INTERVAL_S = 30.0
RETRY_S = 1.0
GATHER_S = 0.02  # pause after a partial batch: fewer and larger groups cost less CPU and fewer syncs

Records = list[tuple[bytes, bytes]]  # record id in Redis, JSON of the outcome
log = structlog.get_logger(__name__)


class OutcomeDrain:
    """Drains the outcomes stream as the consumer named `consumer`, up to `batch` outcomes at a time.

    `record` returns once the outcomes are on disk; only then are they removed from Redis.
    """

    def __init__(self, queues: Queues, consumer: str, batch: int, record: Callable[[Sequence[bytes]], Awaitable[None]]) -> None:
        self.problem: str | None = None
        self._queues, self._consumer, self._batch, self._record = queues, consumer, batch, record
        self._check_stale_at = 0.0  # monotonic seconds
        self._oldest_ms: int | None = None  # when the oldest outcome that was read but is not on disk was written (Redis clock)
        _metrics.OUTCOME_LAG_SECONDS.set_function(self.lag_s)

    def lag_s(self) -> float:
        """The age in seconds of the oldest outcome that was read but is not on disk; 0 if there is none."""
        return 0.0 if self._oldest_ms is None else max(0.0, (wall_clock_ms() - self._oldest_ms) / 1000)

    async def run(self) -> None:
        """Drain until cancelled. While Redis is unavailable, retry every second."""
        reads_unsettled = True  # begin with the outcomes that an earlier process of this name read without settling them
        has_joined = False
        while True:
            try:
                if not has_joined:
                    await self._queues.join_outcomes()
                    has_joined = True
                records = await self._read(reads_unsettled)
                if not records:  # no unsettled outcome is left
                    reads_unsettled = False
                if records:
                    first_id, _ = records[0]
                    self._oldest_ms = int(first_id.split(b"-")[0])  # the id of a record is `<Unix ms>-<number>`
                    await self._record([payload for _, payload in records])
                    self._oldest_ms = None  # the outcomes are on disk, even if the next command fails
                    await self._queues.settle_outcomes([record_id for record_id, _ in records])
                self._oldest_ms = None
                if self.problem is not None:
                    log.info("draining of outcomes from redis resumed")
                self.problem = None
                if 0 < len(records) < self._batch:
                    await asyncio.sleep(GATHER_S)
            except (RedisError, OSError) as exc:
                if self.problem is None:
                    log.warning("outcomes not drained from redis; retrying", reason=str(exc))
                self.problem = f"outcomes cannot be read from Redis: {exc}"
                reads_unsettled = True
                has_joined = False  # if Redis was emptied, its consumer group is lost
                await asyncio.sleep(RETRY_S)

    async def _read(self, reads_unsettled: bool) -> Records:
        """Read the next outcomes.

        With `reads_unsettled`, these are the outcomes that this consumer read before without settling them; otherwise, the stale
        ones of other consumers, or new ones.
        """
        if not reads_unsettled and time.monotonic() >= self._check_stale_at:
            self._check_stale_at = time.monotonic() + STALE_CHECK_INTERVAL_S
            stale = await self._queues.claim_stale_outcomes(self._consumer, idle_ms=STALE_MS, count=self._batch)
            if stale:
                return stale
        return await self._queues.read_outcomes(self._consumer, count=self._batch, block_ms=BLOCK_MS, again=reads_unsettled)
