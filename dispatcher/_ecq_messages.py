"""Messages of compacted queues that did not come with their claim: large ones from Redis, lost ones from the lake."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dispatcher import _metrics
from dispatcher._coalescing import Coalescer
from dispatcher._lake import Lake
from dispatcher._payload_reader import retry_redis, tolerate_out_of_memory
from dispatcher._payloads import Answer, Found, MissingData, at_once
from manifold.contracts import keys
from manifold.contracts.queue_names import QueueName, owner_of_queue
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues
from manifold.queues.verbs.ecq import Append

IN_REDIS, IN_LAKE = 16, 100  # messages per read, each up to max_data_bytes large
Entry = tuple[QueueName, int]


class EcqMessages:
    """Reads single messages. Waits for `may_read` before each read."""

    def __init__(self, queues: Queues, lake: Lake) -> None:
        self._queues, self._lake = queues, lake
        self.may_read: Callable[[], Awaitable[Any]] = at_once
        self._answers: dict[Entry, Answer] = {}
        self._of_redis = Coalescer[Entry]("messages.redis", self._look_in_redis, max_batch=IN_REDIS)
        self._of_lake = Coalescer[Entry]("messages.lake", self._look_in_lake, max_batch=IN_LAKE)

    def fetch(self, queue: QueueName, seq: int, answer: Answer) -> None:
        """Read a message and call `answer` with it, or with `MissingData`. A repeated request is answered once."""
        self._answers[queue, seq] = answer
        self._of_redis.add((queue, seq))

    async def close(self) -> None:
        """Stop reading; pending requests stay unanswered."""
        await self._of_redis.close()
        await self._of_lake.close()

    async def _look_in_redis(self, entries: Sequence[Entry]) -> None:
        await self.may_read()
        for entry, message in zip(entries, await self._take(entries), strict=True):
            if message is None:
                self._of_lake.add(entry)
            else:
                key, _, payload = message.partition(b"\0")
                self._answer(entry, Found(key.decode(errors="replace"), "", payload), "redis")

    @retry_redis
    async def _take(self, entries: Sequence[Entry]) -> list[bytes | None]:
        batch = self._queues.batch()
        for queue, seq in entries:
            batch.call(("HGET", keys.ecq_messages(owner_of_queue(queue)), seq), _bytes_or_none)
        found = await batch.run(tolerant=True)
        return [message if isinstance(message, bytes) else None for message in found]

    async def _look_in_lake(self, entries: Sequence[Entry]) -> None:
        await self.may_read()
        found = await self._lake.ecq_messages([(owner_of_queue(queue), seq) for queue, seq in entries])
        await self._put_back({entry: said for entry in entries if (said := found.get((owner_of_queue(entry[0]), entry[1])))})
        for queue, seq in entries:
            said = found.get((owner_of_queue(queue), seq))
            self._answer((queue, seq), MissingData("") if said is None else Found(said[0], "", said[1]), "lake")

    @retry_redis
    async def _put_back(self, messages: dict[Entry, tuple[str, bytes]]) -> None:
        if not messages:
            return
        batch = self._queues.batch()
        for (queue, seq), (key, payload) in messages.items():
            batch.add(queue, Append(seq, key, payload), wall_clock_ms())
        with tolerate_out_of_memory("messages not put back"):
            await batch.run(tolerant=True)

    def _answer(self, entry: Entry, found: Found | MissingData, where: str) -> None:
        _metrics.PAYLOAD_LOADS.labels(where if isinstance(found, Found) else "nowhere").inc()
        if (answer := self._answers.pop(entry, None)) is not None:
            answer(found)


def _bytes_or_none(reply: bytes | None) -> bytes | None:
    return reply
