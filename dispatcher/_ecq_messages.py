"""Reads messages of compacted queues that did not come with their claim.

Large messages are read from Redis, and messages that Redis has lost from the lake.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dispatcher import _metrics
from dispatcher._coalescing import Coalescer
from dispatcher._lake import Lake
from dispatcher._payload_reader import retry_redis, tolerate_out_of_memory
from dispatcher._payloads import Found, MissingData, OnFound, at_once
from manifold.contracts import keys
from manifold.contracts.queue_names import QueueName, owner_of_queue
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues
from manifold.queues.verbs.ecq import Append

REDIS_BATCH_SIZE, LAKE_BATCH_SIZE = 16, 100  # messages per read; a message may have up to max_data_bytes bytes
Entry = tuple[QueueName, int]


class EcqMessages:
    """Reads single messages, and waits for `may_read` before each read."""

    def __init__(self, queues: Queues, lake: Lake) -> None:
        self._queues, self._lake = queues, lake
        self.may_read: Callable[[], Awaitable[Any]] = at_once
        self._callbacks: dict[Entry, OnFound] = {}  # of the requested messages
        self._redis_lookups = Coalescer[Entry]("messages.redis", self._look_in_redis, max_batch=REDIS_BATCH_SIZE)
        self._lake_lookups = Coalescer[Entry]("messages.lake", self._look_in_lake, max_batch=LAKE_BATCH_SIZE)

    def fetch(self, queue: QueueName, seq: int, on_found: OnFound) -> None:
        """Read a message and call `on_found` with it, or with `MissingData` if neither Redis nor the lake has it.

        If the same message is requested again before it is found, only the latest `on_found` is called.
        """
        self._callbacks[queue, seq] = on_found
        self._redis_lookups.add((queue, seq))

    async def close(self) -> None:
        """Stop reading; the callbacks of pending requests are not called."""
        await self._redis_lookups.close()
        await self._lake_lookups.close()

    async def _look_in_redis(self, entries: Sequence[Entry]) -> None:
        """Read messages from Redis, and look up in the lake those that Redis lacks."""
        await self.may_read()
        for entry, message in zip(entries, await self._read_redis(entries), strict=True):
            if message is None:
                self._lake_lookups.add(entry)
            else:
                key, _, payload = message.partition(b"\0")
                self._call_back(entry, Found(key.decode(errors="replace"), "", payload), "redis")

    @retry_redis
    async def _read_redis(self, entries: Sequence[Entry]) -> list[bytes | None]:
        """Read messages (key, NUL, payload) in one round trip; None for one that Redis lacks or whose key is corrupt."""
        batch = self._queues.batch()
        for queue, seq in entries:
            batch.call(("HGET", keys.ecq_messages(owner_of_queue(queue)), seq), _bytes_or_none)
        replies = await batch.run(tolerant=True)
        return [reply if isinstance(reply, bytes) else None for reply in replies]

    async def _look_in_lake(self, entries: Sequence[Entry]) -> None:
        """Read messages from the lake, put those that it has back into Redis, and call the callbacks of all."""
        await self.may_read()
        in_lake = await self._lake.ecq_messages([(owner_of_queue(queue), seq) for queue, seq in entries])
        messages: dict[Entry, tuple[str, bytes]] = {}  # entry → key and payload
        for queue, seq in entries:
            message = in_lake.get((owner_of_queue(queue), seq))
            if message is not None:
                messages[queue, seq] = message
        await self._put_back(messages)
        for entry in entries:
            if entry in messages:
                key, payload = messages[entry]
                self._call_back(entry, Found(key, "", payload), "lake")
            else:
                self._call_back(entry, MissingData(""), "lake")

    @retry_redis
    async def _put_back(self, messages: dict[Entry, tuple[str, bytes]]) -> None:
        """Put messages, each with key and payload, back into Redis."""
        if not messages:
            return
        batch = self._queues.batch()
        for (queue, seq), (key, payload) in messages.items():
            batch.add(queue, Append(seq, key, payload), wall_clock_ms())
        with tolerate_out_of_memory("messages of compacted queues not put back"):
            await batch.run(tolerant=True)

    def _call_back(self, entry: Entry, result: Found | MissingData, source: str) -> None:
        """Count the result, and call the callback of this message with it."""
        _metrics.PAYLOAD_LOADS.labels(source if isinstance(result, Found) else "nowhere").inc()
        on_found = self._callbacks.pop(entry, None)
        if on_found is not None:
            on_found(result)


def _bytes_or_none(reply: bytes | None) -> bytes | None:
    return reply
