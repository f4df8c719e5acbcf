"""Reads payloads by data_id, first from Redis and then from the lake, each of them once for all callers.

The bytes of payloads that were read but not used yet are bounded. The number of waiting data_ids is not: they are small, and a
lookup of many costs less for each of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import structlog
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from tenacity import retry, retry_if_exception_type, wait_exponential_jitter

from dispatcher import _metrics
from dispatcher._coalescing import Coalescer
from dispatcher._lake import READERS, Lake
from manifold.contracts import keys
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues, is_corrupt

MAX_UNMEASURED_PAYLOADS = 16  # if there are more payloads, their sizes are read first, so that one read is not too large
MAX_READ_BYTES = 16 << 20  # bytes of several payloads that are read from Redis at once; a single payload may be larger
REDIS_BATCH_SIZE, LAKE_BATCH_SIZE = 1_000, 5_000  # data_ids per lookup

log = structlog.get_logger(__name__)
retry_redis = retry(retry=retry_if_exception_type(RedisError), wait=wait_exponential_jitter(multiplier=0.05, max=2, jitter=0.1))


@contextmanager
def tolerate_out_of_memory(consequence: str) -> Iterator[None]:
    """Log an OutOfMemoryError of the block, with its consequence, instead of raising it: the lake still has the data."""
    try:
        yield
    except OutOfMemoryError as exc:
        log.warning("redis out of memory", consequence=consequence, reason=str(exc))


class PayloadReader:
    """Reads payloads, waiting for `may_read` before each read, and passes them to `keep`."""

    def __init__(
        self, queues: Queues, lake: Lake, *, keep: Callable[[str, bytes], None], may_read: Callable[[], Awaitable[Any]]
    ) -> None:
        self._queues, self._lake, self._keep, self._may_read = queues, lake, keep, may_read
        self._futures: dict[str, asyncio.Future[bytes | None]] = {}  # the requested payloads, by data_id
        self._redis_lookups = Coalescer[str]("data.redis", self._look_in_redis, max_batch=REDIS_BATCH_SIZE)
        self._lake_lookups = Coalescer[str]("data.lake", self._look_in_lake, max_batch=LAKE_BATCH_SIZE, max_concurrent=READERS)
        self._unparking: set[asyncio.Task[None]] = set()

    def read(self, data_id: str) -> "asyncio.Future[bytes | None]":
        """Return a future of the payload, which all callers share: do not cancel it.

        Its result is None if the payload is not found or the lake is unreadable.
        """
        future = self._futures.get(data_id)
        if future is None:
            future = self._futures[data_id] = asyncio.get_running_loop().create_future()
            self._redis_lookups.add(data_id)
        return future

    async def close(self) -> None:
        """Stop reading, and cancel the futures of pending requests."""
        await self._redis_lookups.close()
        await self._lake_lookups.close()
        for task in self._unparking:
            task.cancel()
        await asyncio.gather(*self._unparking, return_exceptions=True)
        for future in self._futures.values():
            future.cancel()

    async def _look_in_redis(self, data_ids: Sequence[str]) -> None:
        """Read payloads from Redis, in parts of bounded size, and look up in the lake those that Redis lacks."""
        if len(data_ids) > MAX_UNMEASURED_PAYLOADS:
            sizes = await self._sizes(data_ids)
        else:
            sizes = [0] * len(data_ids)  # so few payloads are read at once, whatever their sizes
        for part in _split_by_size(data_ids, sizes):
            await self._may_read()
            for data_id, payload in zip(part, await self._read_redis(part), strict=True):
                if payload is None:
                    self._lake_lookups.add(data_id)
                else:
                    self._complete(data_id, payload, "redis")
            await asyncio.sleep(0)  # let the callers process these payloads, after which `may_read` may have to wait

    async def _look_in_lake(self, data_ids: Sequence[str]) -> None:
        """Read payloads from the lake, and put them back into Redis. For a missing or unreadable payload, the result is None."""
        remaining = set(data_ids)
        try:
            await self._may_read()
            async with aclosing(self._lake.payloads(data_ids)) as pieces:
                async for piece in pieces:
                    await self._put_back({data_id: payload for data_id, payload in piece.items() if payload is not None})
                    remaining.difference_update(piece)
                    for data_id in tuple(piece):
                        # `pop`, so that `piece` does not keep the payload alive.
                        self._complete(data_id, piece.pop(data_id), "lake")
                    await asyncio.sleep(0)
                    await self._may_read()
        except asyncio.CancelledError:
            remaining.clear()  # `close` cancels their futures
            raise
        finally:
            for data_id in remaining:  # these could not be read; the caller retries later
                self._complete(data_id, None, "lake")

    def _complete(self, data_id: str, payload: bytes | None, source: str) -> None:
        """Give the future of this data_id its result: the payload, or None if it was not found or not readable."""
        _metrics.PAYLOAD_LOADS.labels(source if payload is not None else "nowhere").inc()
        if payload is not None:
            self._keep(data_id, payload)
        self._futures.pop(data_id).set_result(payload)

    @retry_redis
    async def _sizes(self, data_ids: Sequence[str]) -> list[int]:
        return await self._queues.data_sizes(data_ids)

    @retry_redis
    async def _read_redis(self, data_ids: Sequence[str]) -> list[bytes | None]:
        """Read payloads in one round trip, and unpark the entries that wait for a payload that is in Redis."""
        payloads, waited_for = await self._queues.read_data(data_ids)
        in_redis = {data_id for data_id, payload in zip(data_ids, payloads, strict=True) if payload is not None}
        self._unpark(in_redis.intersection(waited_for))
        return payloads

    @retry_redis
    async def _put_back(self, payloads: Mapping[str, bytes]) -> None:
        """Put payloads back into Redis, and unpark the entries that wait for them."""
        if payloads:
            with tolerate_out_of_memory("payloads not put back"):
                self._unpark(await self._queues.restore_data(payloads))

    def _unpark(self, data_ids: Collection[str]) -> None:
        """Queue the entries that are parked for this data, in the background, because there may be many."""
        if data_ids:
            task = asyncio.create_task(self._unpark_all(data_ids), name="dispatcher.unpark")
            self._unparking.add(task)
            task.add_done_callback(self._unparking.discard)

    async def _unpark_all(self, data_ids: Collection[str]) -> None:
        for data_id in data_ids:
            await self._unpark_waiting(data_id)

    @retry_redis
    async def _unpark_waiting(self, data_id: str) -> None:
        """Queue the entries that are parked for this data_id. If a key is corrupt, a retry would not help: log it instead."""
        try:
            with tolerate_out_of_memory("entries stay parked"):  # the next check of all parked entries tries again
                await self._queues.unpark_waiting(data_id, wall_clock_ms())
        except ResponseError as exc:
            if not is_corrupt(exc):
                raise
            log.warning("corrupt key in redis", key=keys.waiting_for(data_id), reason=str(exc), remedy="delete it")


def _split_by_size(data_ids: Sequence[str], sizes: Sequence[int]) -> Iterator[list[str]]:
    """Split the data_ids into parts of at most `MAX_READ_BYTES`, or of a single data_id; `sizes` are in bytes."""
    part, part_size = list[str](), 0
    for data_id, size in zip(data_ids, sizes, strict=True):
        if part and part_size + size > MAX_READ_BYTES:
            yield part
            part, part_size = [], 0
        part.append(data_id)
        part_size += size
    yield part
