"""The face for long-running processes: verbs, triggers, payloads, wake-ups and outcomes, over asyncio."""

from collections.abc import Sequence
from typing import Any

from contracts import keys
from queues import _commands
from queues._marks import MarkedQueues
from queues._outcomes import OutcomeStream
from queues._spoilt import spoilt_among
from queues._waiting import WaitingForData


class Queues(WaitingForData, OutcomeStream, MarkedQueues):
    """The pending queues. `redis` must not decode responses: payloads are bytes.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses.
    """

    async def store_trigger(self, seq: int, request_id: str, data_id: str) -> None:
        """Keep what all entries of one trigger share."""
        batch = self.batch()
        for command in _commands.store_trigger(self.policy, seq, request_id, data_id):
            batch.call(command, int)
        await batch.run()

    async def triggers(self, seqs: Sequence[int]) -> list[tuple[str, str] | None]:
        """request_id and data_id of each trigger, in one round trip; None for one that Redis does not know."""
        batch = self.batch()
        for seq in seqs:
            batch.call(("HMGET", keys.trigger(seq), "request_id", "data_id"), _trigger)
        return await batch.run()

    async def store_data(self, data_id: str, payload: bytes, now_ms: int) -> str:
        """Keep a payload: `stored`, `same`, or `differs` (then nothing changes). What waited for it is queued again."""
        batch = self.batch()
        batch.call(_commands.store_data(self.policy, data_id, payload), lambda word: bytes(word).decode())
        (word,) = await batch.run()
        if word != "differs":
            await self.unpark_waiting(data_id, now_ms)
        return str(word)

    async def data(self, data_id: str) -> bytes | None:
        """A payload; None if Redis does not hold it."""
        (payload,) = _bytes([await self.redis.get(keys.data(data_id))])
        return payload

    async def spoilt_key(self, owner: str) -> str | None:
        """The first key of an owner that holds another type than it should, with the type that it has; None: there is none."""
        batch = self.batch()
        for key in keys.owner_keys(owner):
            batch.call(("TYPE", key), bytes)
        return spoilt_among(owner, await batch.run())


def _bytes(replies: Any) -> list[bytes | None]:
    """Replies of a client that does not decode."""
    return list(replies)


def _trigger(fields: list[bytes | None]) -> tuple[str, str] | None:
    request_id, data_id = fields
    return (request_id.decode(), data_id.decode()) if request_id and data_id else None
