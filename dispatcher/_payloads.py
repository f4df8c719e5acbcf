"""What to send for an entry: trigger and payload, from memory, then Redis, then the lake; each read once for all who ask."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import structlog
from redis.exceptions import OutOfMemoryError, RedisError
from tenacity import retry, retry_if_exception_type, wait_exponential_jitter

from contracts.seq import wall_clock_ms
from dispatcher import _metrics
from dispatcher._lake import Lake
from queues import Queues

TRIGGERS_KEPT = 10_000
READ_AT_ONCE = 64  # payloads; what is read waits in memory until the broker has room for it

log = structlog.get_logger(__name__)
_when_redis_is_back = retry(
    retry=retry_if_exception_type(RedisError), wait=wait_exponential_jitter(multiplier=0.05, max=2, jitter=0.1)
)


@contextmanager
def _without_room() -> Iterator[None]:
    """Redis would have it back for others' sake; where it has no memory for that, each reads the lake for itself."""
    try:
        yield
    except OutOfMemoryError as exc:
        log.warning("redis is out of memory: not put back", reason=str(exc))


async def _at_once() -> None:
    """Whoever reads need not wait."""


class Found(NamedTuple):
    """What an entry sends."""

    request_id: str
    data_id: str
    payload: bytes


class Lacking(NamedTuple):
    """The data that an entry waits for; empty where its trigger itself is unknown."""

    data_id: str


Answer = Callable[[Found | Lacking], None]


class Payloads:
    """Triggers and payloads of one process: payloads up to `max_bytes`, the least recently used go first."""

    def __init__(self, queues: Queues, lake: Lake, *, max_bytes: int) -> None:
        self._queues, self._lake, self._max_bytes = queues, lake, max_bytes
        self._triggers: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self._payloads: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._asking: dict[int, list[Answer]] = {}  # those who wait for the entry's trigger and data, by seq
        self._reading: dict[str, asyncio.Task[bytes | None]] = {}  # one reader for each data id
        self._wanted: dict[int, str] = {}  # seqs that this turn of the loop asks for, each with an owner who has it
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers = asyncio.Semaphore(READ_AT_ONCE)
        self.may_read: Callable[[], Awaitable[Any]] = _at_once

    def at_hand(self, seq: int) -> Found | None:
        """What the entry sends, if it is in memory."""
        trigger = self._triggers.get(seq)
        payload = self._payloads.get(trigger[1]) if trigger else None
        if trigger is None or payload is None:
            return None
        self._triggers.move_to_end(seq)
        self._payloads.move_to_end(trigger[1])
        return Found(trigger[0], trigger[1], payload)

    def request_id_of(self, seq: int) -> str | None:
        """The request id of an entry, if it is in memory."""
        trigger = self._triggers.get(seq)
        return trigger[0] if trigger else None

    def fetch(self, owner: str, seq: int, answer: Answer) -> None:
        """Calls `answer` as soon as it is known what the entry sends, or that nobody has it."""
        asking = self._asking.get(seq)
        if asking is not None:
            asking.append(answer)
            return
        self._asking[seq] = [answer]
        self._wanted[seq] = owner
        if len(self._wanted) == 1:
            self._spawn(self._fetch_together(), "dispatcher.triggers")

    def learn(self, seq: int, request_id: str, data_id: str) -> None:
        """A trigger that Redis told of by the way: nobody needs to ask for it."""
        self._keep_trigger(seq, (request_id, data_id))

    async def read(self, data_id: str) -> bytes | None:
        """The payload, from Redis or the lake. Found in the lake, it is put back into Redis, and what waited for it is queued."""
        reading = self._reading.get(data_id)
        if reading is None:
            reading = asyncio.create_task(self._read(data_id), name=f"dispatcher.data.{data_id}")
            self._reading[data_id] = reading
            reading.add_done_callback(lambda _: self._reading.pop(data_id, None))
        return await asyncio.shield(reading)

    async def close(self) -> None:
        """Stop reading."""
        tasks = [*self._tasks, *self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch_together(self) -> None:
        wanted, self._wanted = self._wanted, {}
        await self._ask_redis([seq for seq in wanted if seq not in self._triggers])
        for seq, owner in wanted.items():
            found = self.at_hand(seq)
            if found is None:
                self._spawn(self._fetch(owner, seq), f"dispatcher.payload.{seq}")
            else:
                self._answer(seq, found)

    async def _fetch(self, owner: str, seq: int) -> None:
        self._answer(seq, await self._find(owner, seq))

    def _answer(self, seq: int, found: Found | Lacking) -> None:
        for answer in self._asking.pop(seq):
            answer(found)

    async def _find(self, owner: str, seq: int) -> Found | Lacking:
        trigger = self._triggers.get(seq) or await self._trigger_of_lake(owner, seq)
        if trigger is None:
            log.warning("trigger unknown", seq=seq, vin=owner)
            return Lacking("")
        request_id, data_id = trigger
        payload = self._payloads.get(data_id)
        if payload is None:
            payload = await self.read(data_id)
        return Lacking(data_id) if payload is None else Found(request_id, data_id, payload)

    @_when_redis_is_back
    async def _ask_redis(self, seqs: Sequence[int]) -> None:
        """Learn these triggers, where Redis knows them."""
        for seq, trigger in zip(seqs, await self._queues.triggers(seqs) if seqs else (), strict=True):
            if trigger is not None:
                self._keep_trigger(seq, trigger)

    @_when_redis_is_back
    async def _trigger_of_lake(self, owner: str, seq: int) -> tuple[str, str] | None:
        trigger = await self._lake.trigger(owner, seq)
        if trigger is not None:
            self._keep_trigger(seq, trigger)
            with _without_room():
                await self._queues.store_trigger(seq, *trigger)
        return trigger

    @_when_redis_is_back
    async def _read(self, data_id: str) -> bytes | None:
        async with self._readers:
            await self.may_read()
            where, payload = "redis", await self._queues.data(data_id)
            if payload is None:
                where, payload = "lake", await self._lake.data(data_id)
            if payload is not None:
                with _without_room():
                    await self._queues.store_data(data_id, payload, wall_clock_ms())
        _metrics.PAYLOAD_LOADS.labels(where if payload is not None else "nowhere").inc()
        if payload is not None:
            self._keep_payload(data_id, payload)
        return payload

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep_trigger(self, seq: int, trigger: tuple[str, str]) -> None:
        self._triggers[seq] = trigger
        if len(self._triggers) > TRIGGERS_KEPT:
            self._triggers.popitem(last=False)

    def _keep_payload(self, data_id: str, payload: bytes) -> None:
        self._bytes += len(payload) - len(self._payloads.get(data_id, b""))
        self._payloads[data_id] = payload
        while self._bytes > self._max_bytes and len(self._payloads) > 1:
            _, dropped = self._payloads.popitem(last=False)
            self._bytes -= len(dropped)
        _metrics.CACHED_BYTES.set(self._bytes)
