"""The interface of the queues for services, over asyncio: verbs, triggers, payloads, wake-ups, watermarks and outcomes."""

from collections.abc import Mapping, Sequence
from typing import Any

from manifold.contracts import keys
from manifold.contracts.brakes import EntryTrigger
from manifold.queues import _commands
from manifold.queues._batch import LAST
from manifold.queues._brakes import BrakedQueues
from manifold.queues._corrupt_keys import find_corrupt_key, is_corrupt, keys_of
from manifold.queues._drivers import AsyncBatch
from manifold.queues._outcome_stream import OutcomeStream
from manifold.queues._waiting import WaitingForData
from manifold.queues._watermarks import WatermarkedQueues


class Queues(WaitingForData, OutcomeStream, WatermarkedQueues, BrakedQueues):
    """The pending queues. `redis` must not decode responses: payloads are bytes.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def store_trigger(self, seq: int, trigger: EntryTrigger) -> None:
        """Store what the entries of a trigger share. A key of a wrong type is left: dispatchers then read from the lake."""
        batch = self.batch()
        for command in _commands.store_trigger(self.policy, seq, trigger):
            batch.call(command, int)
        await batch.run(tolerant=True)

    async def triggers(self, seqs: Sequence[int]) -> list[EntryTrigger | None]:
        """Read what the entries of each trigger share, in one round trip; None for a trigger whose key is missing or corrupt."""
        batch = self.batch()
        for seq in seqs:
            batch.call(("HMGET", keys.trigger(seq), "request_id", "data_id", "campaign", "until"), _trigger)
        return [None if is_corrupt(trigger) else trigger for trigger in await batch.run(tolerant=True)]

    async def store_data(self, data_id: str, payload: bytes, now_ms: int) -> str:
        """Store a payload, and queue the entries that were parked because it was missing.

        Returns `stored`, `same`, or `differs` if the data_id already has other bytes, in which case nothing changes.
        """
        batch = self.batch()
        batch.call(_commands.store_data(self.policy, data_id, payload), lambda word: bytes(word).decode())
        (word,) = await batch.run()
        if word != "differs":
            await self.unpark_waiting(data_id, now_ms)
        return str(word)

    async def read_data(self, data_ids: Sequence[str]) -> tuple[list[bytes | None], list[str]]:
        """Read payloads in one round trip. Returns them in order, and the data_ids for which entries are parked.

        A payload is None if Redis lacks it or its key has a wrong type. Each read restarts the retention of the payload.
        """
        batch = self.batch()
        for data_id in data_ids:
            batch.call(("GETEX", keys.data(data_id), "PX", self.policy.retention_ms), _bytes_or_none)
        return await self._run_and_find_waited_for(batch, data_ids)

    async def data_sizes(self, data_ids: Sequence[str]) -> list[int]:
        """Read the size of each payload in bytes, in one round trip; 0 if Redis lacks the payload or its key has a wrong type."""
        batch = self.batch()
        for data_id in data_ids:
            batch.call(("STRLEN", keys.data(data_id)), int)
        return [0 if is_corrupt(size) else size for size in await batch.run(tolerant=True)]

    async def restore_data(self, payloads: Mapping[str, bytes]) -> list[str]:
        """Restore payloads that Redis has lost, in one round trip; returns the data_ids for which entries are parked.

        Raises:
            redis.OutOfMemoryError: Redis had no memory for some of the payloads.
        """
        batch = self.batch()
        for data_id, payload in payloads.items():
            batch.call(_commands.store_data(self.policy, data_id, payload), bytes)
        _, waited_for = await self._run_and_find_waited_for(batch, list(payloads))
        return waited_for

    async def _run_and_find_waited_for(self, batch: AsyncBatch, data_ids: Sequence[str]) -> tuple[list[Any], list[str]]:
        """Run a batch that has one command for each data_id.

        Returns the replies, with None for that of a corrupt key, and the data_ids for which entries are parked.
        """
        for data_id in data_ids:
            batch.call(("EXISTS", keys.waiting_for(data_id)), int, stage=LAST)
        replies = [None if is_corrupt(reply) else reply for reply in await batch.run(tolerant=True)]
        payload_replies, exists_replies = replies[: len(data_ids)], replies[len(data_ids) :]
        waited_for = [data_id for data_id, exists in zip(data_ids, exists_replies, strict=True) if exists]
        return payload_replies, waited_for

    async def corrupt_key(self, queue: str) -> str | None:
        """Describe the queue's first key with a wrong type, naming the key and its type; None if there is none."""
        batch = self.batch()
        for key in keys_of(queue):
            batch.call(("TYPE", key), bytes)
        return find_corrupt_key(queue, await batch.run())


def _bytes_or_none(reply: bytes | None) -> bytes | None:
    return reply


def _trigger(fields: list[bytes | None]) -> EntryTrigger | None:
    """Parse the fields of a trigger's hash; None if the hash is missing or incomplete."""
    request_id, data_id, campaign, until = fields
    if not (request_id and data_id):
        return None
    is_release = bool(campaign)  # only a campaign's release has this field
    return EntryTrigger(request_id.decode(), data_id.decode(), is_release, int(until) if until else None)
