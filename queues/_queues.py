"""The face for long-running processes: verbs, triggers, payloads, wake-ups and outcomes, over asyncio."""

from collections.abc import Mapping, Sequence
from typing import Any

from contracts import keys
from queues import _commands
from queues._batch import LAST
from queues._drivers import AsyncBatch
from queues._marks import MarkedQueues
from queues._outcomes import OutcomeStream
from queues._spoilt import is_spoilt, keys_of, spoilt_among
from queues._waiting import WaitingForData


class Queues(WaitingForData, OutcomeStream, MarkedQueues):
    """The pending queues. `redis` must not decode responses: payloads are bytes.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses.
    """

    async def store_trigger(self, seq: int, request_id: str, data_id: str) -> None:
        """Keep what all entries of one trigger share; not where its key holds something else, as the lake has it, too."""
        batch = self.batch()
        for command in _commands.store_trigger(self.policy, seq, request_id, data_id):
            batch.call(command, int)
        await batch.run(tolerant=True)

    async def triggers(self, seqs: Sequence[int]) -> list[tuple[str, str] | None]:
        """request_id and data_id of each trigger, in one round trip; None where its key holds nothing, or something else."""
        batch = self.batch()
        for seq in seqs:
            batch.call(("HMGET", keys.trigger(seq), "request_id", "data_id"), _trigger)
        return [None if is_spoilt(trigger) else trigger for trigger in await batch.run(tolerant=True)]

    async def store_data(self, data_id: str, payload: bytes, now_ms: int) -> str:
        """Keep a payload: `stored`, `same`, or `differs` (then nothing changes). What waited for it is queued again."""
        batch = self.batch()
        batch.call(_commands.store_data(self.policy, data_id, payload), lambda word: bytes(word).decode())
        (word,) = await batch.run()
        if word != "differs":
            await self.unpark_waiting(data_id, now_ms)
        return str(word)

    async def take_data(self, data_ids: Sequence[str]) -> tuple[list[bytes | None], list[str]]:
        """Payloads in one round trip, each kept as long as a new one from now on; and for which of them something is parked.

        None for one that Redis does not hold, or under whose key it holds something else.
        """
        batch = self.batch()
        for data_id in data_ids:
            batch.call(("GETEX", keys.data(data_id), "PX", self.policy.retention_ms), _bytes_or_none)
        return await self._with_waiting(batch, data_ids)

    async def data_sizes(self, data_ids: Sequence[str]) -> list[int]:
        """How many bytes each payload has, in one round trip; 0 for one that Redis does not hold, too."""
        batch = self.batch()
        for data_id in data_ids:
            batch.call(("STRLEN", keys.data(data_id)), int)
        return [0 if is_spoilt(size) else size for size in await batch.run(tolerant=True)]

    async def put_data(self, payloads: Mapping[str, bytes]) -> list[str]:
        """Keep payloads that Redis has lost, in one round trip; for which of them something is parked.

        Raises:
            redis.OutOfMemoryError: there was no room for some.
        """
        batch = self.batch()
        for data_id, payload in payloads.items():
            batch.call(_commands.store_data(self.policy, data_id, payload), bytes)
        return (await self._with_waiting(batch, list(payloads)))[1]

    async def _with_waiting(self, batch: AsyncBatch, data_ids: Sequence[str]) -> tuple[list[Any], list[str]]:
        """The replies of a batch of one command for each data id, None in place of an error; and what something is parked for."""
        for data_id in data_ids:
            batch.call(("EXISTS", keys.waiting_for(data_id)), int, stage=LAST)
        replies = [None if is_spoilt(reply) else reply for reply in await batch.run(tolerant=True)]
        waits = replies[len(data_ids) :]
        return replies[: len(data_ids)], [data_id for data_id, waiting in zip(data_ids, waits, strict=True) if waiting]

    async def spoilt_key(self, queue: str) -> str | None:
        """The first key of a queue that holds another type than it should, with the type that it has; None: there is none."""
        batch = self.batch()
        for key in keys_of(queue):
            batch.call(("TYPE", key), bytes)
        return spoilt_among(queue, await batch.run())


def _bytes_or_none(reply: bytes | None) -> bytes | None:
    return reply


def _trigger(fields: list[bytes | None]) -> tuple[str, str] | None:
    request_id, data_id = fields
    return (request_id.decode(), data_id.decode()) if request_id and data_id else None
