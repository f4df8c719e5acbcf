"""Reads payloads by data_id, from Redis, then from the lake, each once for all callers.

Payloads that were read but not used yet are bounded in bytes. Waiting data_ids are not: they are small, and looking up more of
them together costs less for each.
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

MAX_UNMEASURED_PAYLOADS = 16  # payloads read from Redis without asking for their sizes first
MAX_READ_BYTES = 16 << 20  # bytes read from Redis at once if there are more payloads; a single payload may be larger
LOOKED_FOR_IN_REDIS, LOOKED_FOR_IN_LAKE = 1_000, 5_000  # data_ids per lookup

log = structlog.get_logger(__name__)
retry_redis = retry(retry=retry_if_exception_type(RedisError), wait=wait_exponential_jitter(multiplier=0.05, max=2, jitter=0.1))


@contextmanager
def tolerate_out_of_memory(consequence: str) -> Iterator[None]:
    """Log an OutOfMemoryError of the block, with its consequence, instead of raising it: the lake has what Redis lacks."""
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
        self._answers: dict[str, asyncio.Future[bytes | None]] = {}
        self._of_redis = Coalescer[str]("data.redis", self._look_in_redis, max_batch=LOOKED_FOR_IN_REDIS)
        self._of_lake = Coalescer[str]("data.lake", self._look_in_lake, max_batch=LOOKED_FOR_IN_LAKE, max_concurrent=READERS)
        self._unparking: set[asyncio.Task[None]] = set()

    def read(self, data_id: str) -> "asyncio.Future[bytes | None]":
        """Return a future of the payload, shared by all callers: do not cancel it. None: not found, or the lake is unreadable."""
        answer = self._answers.get(data_id)
        if answer is None:
            answer = self._answers[data_id] = asyncio.get_running_loop().create_future()
            self._of_redis.add(data_id)
        return answer

    async def close(self) -> None:
        """Stop reading; pending requests stay unanswered."""
        await self._of_redis.close()
        await self._of_lake.close()
        for task in self._unparking:
            task.cancel()
        await asyncio.gather(*self._unparking, return_exceptions=True)
        for answer in self._answers.values():
            answer.cancel()

    async def _look_in_redis(self, data_ids: Sequence[str]) -> None:
        sizes = await self._sizes(data_ids) if len(data_ids) > MAX_UNMEASURED_PAYLOADS else [0] * len(data_ids)
        for some in _split_by_size(data_ids, sizes):
            await self._may_read()
            for data_id, payload in zip(some, await self._take(some), strict=True):
                if payload is None:
                    self._of_lake.add(data_id)
                else:
                    self._answer(data_id, payload, "redis")
            await asyncio.sleep(0)  # let the callers take it; they may have enough for now

    async def _look_in_lake(self, data_ids: Sequence[str]) -> None:
        """Answer lookups from the lake and put found payloads back into Redis; None answers those that could not be read."""
        left = set(data_ids)
        try:
            await self._may_read()
            async with aclosing(self._lake.payloads(data_ids)) as pieces:
                async for piece in pieces:
                    await self._put_back({data_id: payload for data_id, payload in piece.items() if payload is not None})
                    left.difference_update(piece)
                    for data_id in tuple(piece):
                        self._answer(data_id, piece.pop(data_id), "lake")  # pop, or this loop would keep the payload alive
                    await asyncio.sleep(0)
                    await self._may_read()
        except asyncio.CancelledError:
            left.clear()
            raise
        finally:
            for data_id in left:  # could not be read; the caller retries
                self._answer(data_id, None, "lake")

    def _answer(self, data_id: str, payload: bytes | None, where: str) -> None:
        _metrics.PAYLOAD_LOADS.labels(where if payload is not None else "nowhere").inc()
        if payload is not None:
            self._keep(data_id, payload)
        self._answers.pop(data_id).set_result(payload)

    @retry_redis
    async def _sizes(self, data_ids: Sequence[str]) -> list[int]:
        return await self._queues.data_sizes(data_ids)

    @retry_redis
    async def _take(self, data_ids: Sequence[str]) -> list[bytes | None]:
        payloads, waited_for = await self._queues.take_data(data_ids)
        self._unpark(
            {data_id for data_id, payload in zip(data_ids, payloads, strict=True) if payload is not None} & {*waited_for}
        )
        return payloads

    @retry_redis
    async def _put_back(self, payloads: Mapping[str, bytes]) -> None:
        if payloads:
            with tolerate_out_of_memory("payloads not put back"):
                self._unpark(await self._queues.put_data(payloads))

    def _unpark(self, data_ids: Collection[str]) -> None:
        """Queue the entries that waited for this data, in the background, since there may be many."""
        if data_ids:
            task = asyncio.create_task(self._queue_again(data_ids), name="dispatcher.unpark")
            self._unparking.add(task)
            task.add_done_callback(self._unparking.discard)

    async def _queue_again(self, data_ids: Collection[str]) -> None:
        for data_id in data_ids:
            await self._unpark_waiting(data_id)

    @retry_redis
    async def _unpark_waiting(self, data_id: str) -> None:
        try:
            with tolerate_out_of_memory("entries stay parked"):  # until the next check of all parked entries
                await self._queues.unpark_waiting(data_id, wall_clock_ms())
        except ResponseError as exc:
            if not is_corrupt(exc):
                raise
            log.warning("corrupt key in redis", key=keys.waiting_for(data_id), reason=str(exc), remedy="delete it")


def _split_by_size(data_ids: Sequence[str], sizes: Sequence[int]) -> Iterator[list[str]]:
    some, size = list[str](), 0
    for data_id, more in zip(data_ids, sizes, strict=True):
        if some and size + more > MAX_READ_BYTES:
            yield some
            some, size = [], 0
        some.append(data_id)
        size += more
    yield some
