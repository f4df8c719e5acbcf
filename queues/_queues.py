"""The face for long-running processes: verbs, triggers, payloads, wake-ups and outcomes, over asyncio."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts import keys
from queues import _commands
from queues._marks import MarkedQueues
from queues._outcomes import OutcomeStream
from queues._spoilt import spoilt_among
from queues._waiting import WaitingForData
from queues.verbs.fills import Enqueue

OWNERS_A_FLUSH = 500


@dataclass(slots=True)
class EnqueueResult:
    """What became of one trigger's entries."""

    queued: int = 0  # new
    known: int = 0  # had been queued, or had ended, before
    ready: list[str] = field(default_factory=list)  # owners that a dispatcher was woken for
    superseded: list[tuple[str, int]] = field(default_factory=list)  # owner and seq of entries that made place


class Queues(WaitingForData, OutcomeStream, MarkedQueues):
    """The pending queues. `redis` must not decode responses: payloads are bytes.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses.
    """

    async def enqueue_trigger(self, seq: int, owners: Sequence[str], request_id: str, data_id: str, now_ms: int) -> EnqueueResult:
        """Queue one trigger for all its owners and wake the dispatchers for those that can have it now."""
        result = EnqueueResult()
        await self.store_trigger(seq, request_id, data_id)
        for start in range(0, len(owners), OWNERS_A_FLUSH):
            some = owners[start : start + OWNERS_A_FLUSH]
            batch = self.batch()
            for owner in some:
                batch.add(owner, Enqueue(((seq, request_id),)), now_ms)
            ready = []
            for owner, reply in zip(some, await batch.run(), strict=True):
                result.queued += reply.queued
                result.known += not reply.queued
                result.superseded += [(owner, old) for old in reply.superseded]
                if reply.word == "ready":
                    ready.append(owner)
            await self.wake(ready)
            result.ready += ready
        return result

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

    async def register_digest(self, digest: str, seq: int, window_ms: int) -> int:
        """The seq of the first trigger with this digest within the window: `seq` itself, or the one that this one repeats."""
        first = await self.redis.set(keys.dedupe(digest), seq, nx=True, get=True, px=window_ms)
        return seq if first is None else int(first)


def _bytes(replies: Any) -> list[bytes | None]:
    """Replies of a client that does not decode."""
    return list(replies)


def _trigger(fields: list[bytes | None]) -> tuple[str, str] | None:
    request_id, data_id = fields
    return (request_id.decode(), data_id.decode()) if request_id and data_id else None
