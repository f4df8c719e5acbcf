"""The face for long-running processes: verbs, triggers, payloads, wake-ups and outcomes, over asyncio."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from contracts import keys
from contracts.outcomes import OutcomeRecord
from queues import _verbs
from queues._batch import Batch
from queues._cluster import is_cluster
from queues._verbs import Policy

OWNERS_A_FLUSH = 500
OWNERS_A_WAKE = 1000


@dataclass(slots=True)
class EnqueueResult:
    """What became of one trigger's entries."""

    queued: int = 0  # new
    known: int = 0  # had been queued, or had ended, before
    ready: list[str] = field(default_factory=list)  # owners that a dispatcher was woken for
    superseded: list[tuple[str, int]] = field(default_factory=list)  # owner and seq of entries that made place


@dataclass(frozen=True, slots=True)
class Wake:
    """One record of a wake-up stream."""

    shard: int
    record_id: bytes
    owners: list[str]
    trigger: tuple[int, str, str] | None = None  # seq, request_id, data_id, where the record tells of a single trigger


class Queues:
    """The pending queues. `redis` must not decode responses: payloads are bytes.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses.
    """

    def __init__(self, redis: Redis, policy: Policy) -> None:
        self.redis, self.policy = redis, policy

    def batch(self) -> Batch:
        """An empty batch of verbs."""
        return Batch(self.redis, self.policy)

    async def enqueue_trigger(self, seq: int, owners: Sequence[str], request_id: str, data_id: str, now_ms: int) -> EnqueueResult:
        """Queue one trigger for all its owners and wake the dispatchers for those that can have it now."""
        result = EnqueueResult()
        await self.store_trigger(seq, request_id, data_id)
        for start in range(0, len(owners), OWNERS_A_FLUSH):
            some = owners[start : start + OWNERS_A_FLUSH]
            batch = self.batch()
            for owner in some:
                batch.enqueue(owner, [(seq, request_id)], now_ms)
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
        key = keys.trigger(seq)
        pipe = self.redis.pipeline(transaction=False)
        pipe.hset(key, mapping={"request_id": request_id, "data_id": data_id})
        pipe.pexpire(key, self.policy.retention_ms)
        await pipe.execute()

    async def trigger(self, seq: int) -> tuple[str, str] | None:
        """request_id and data_id of a trigger; None if Redis does not know it."""
        request_id, data_id = _bytes(await self.redis.hmget(keys.trigger(seq), ["request_id", "data_id"]))
        return (request_id.decode(), data_id.decode()) if request_id and data_id else None

    async def store_data(self, data_id: str, payload: bytes, now_ms: int) -> str:
        """Keep a payload: `stored`, `same`, or `differs` (then nothing changes). What waited for it is queued again."""
        batch = self.batch()
        batch.add(_verbs.store_data(self.policy, data_id, payload), lambda word: bytes(word).decode())
        (word,) = await batch.run()
        if word != "differs":
            await self.unpark_waiting(data_id, now_ms)
        return str(word)

    async def data(self, data_id: str) -> bytes | None:
        """A payload; None if Redis does not hold it."""
        (payload,) = _bytes([await self.redis.get(keys.data(data_id))])
        return payload

    async def wait_for_data(self, owner: str, data_id: str) -> None:
        """Remember that `owner` has an entry parked for this data. Call it before parking, so that no arrival falls between."""
        await self.redis.sadd(keys.waiting_for(data_id), owner)

    async def unpark_waiting(self, data_id: str, now_ms: int) -> int:
        """Queue again what waited for this data; how many entries that were."""
        waiting = _texts(await self.redis.smembers(keys.waiting_for(data_id)))
        unparked = 0
        for start in range(0, len(waiting), OWNERS_A_FLUSH):
            some = waiting[start : start + OWNERS_A_FLUSH]
            batch = self.batch()
            for owner in some:
                batch.unpark(owner, now_ms)
            replies = await batch.run()
            await self.wake([owner for owner, reply in zip(some, replies, strict=True) if reply.word == "ready"])
            await self.redis.srem(keys.waiting_for(data_id), *some)
            unparked += sum(reply.queued for reply in replies)
        return unparked

    async def waiting_data_ids(self) -> list[str]:
        """Data for which entries are parked."""
        prefix = keys.waiting_for("")
        return [key.decode()[len(prefix) :] async for key in self.redis.scan_iter(match=f"{prefix}*", count=1000)]

    async def wake(self, owners: Iterable[str]) -> None:
        """Tell the dispatchers that these owners have something to claim."""
        by_shard: dict[int, list[str]] = {}
        for owner in owners:
            by_shard.setdefault(keys.shard_of(owner, self.policy.wake_shards), []).append(owner)
        if not by_shard:
            return
        pipe = self.redis.pipeline(transaction=False)
        for shard, some in by_shard.items():
            for start in range(0, len(some), OWNERS_A_WAKE):
                pipe.xadd(keys.wake(shard), {"owners": "\n".join(some[start : start + OWNERS_A_WAKE])})
        await pipe.execute()

    async def join_wakes(self) -> None:
        """Make the consumer groups of the wake-up streams, where they are missing."""
        for shard in range(self.policy.wake_shards):
            await self._make_group(keys.wake(shard), keys.WAKE_GROUP)

    async def read_wakes(self, consumer: str, *, count: int, block_ms: int) -> list[Wake]:
        """New wake-ups for this consumer, waiting up to `block_ms` (0 is for ever)."""
        streams: dict[Any, Any] = {keys.wake(shard): ">" for shard in range(self.policy.wake_shards)}
        found = await self.redis.xreadgroup(keys.WAKE_GROUP, consumer, streams, count=count, block=block_ms)
        return [wake for name, records in _streams(found) for wake in _wakes(_shard(name), records)]

    async def claim_stale_wakes(self, consumer: str, *, idle_ms: int, count: int) -> list[Wake]:
        """Wake-ups that another consumer took and has not settled for `idle_ms`: it is dead or stuck."""
        taken: list[Wake] = []
        for shard in range(self.policy.wake_shards):
            found = await self.redis.xautoclaim(keys.wake(shard), keys.WAKE_GROUP, consumer, idle_ms, count=count)
            taken += _wakes(shard, found[1])
        return taken

    async def settle_wakes(self, wakes: Iterable[Wake]) -> None:
        """These wake-ups are dealt with."""
        by_shard: dict[int, list[bytes]] = {}
        for wake in wakes:
            by_shard.setdefault(wake.shard, []).append(wake.record_id)
        pipe = self.redis.pipeline(transaction=False)
        for shard, ids in by_shard.items():
            pipe.xack(keys.wake(shard), keys.WAKE_GROUP, *ids)
            pipe.xdel(keys.wake(shard), *ids)
        await pipe.execute()

    async def due(self, shard: int, now_ms: int, count: int) -> list[str]:
        """Owners of this shard whose in-flight entry may be overdue, soonest first. They stay in the index until `settle_due`."""
        owners = await self.redis.zrangebyscore(keys.deadlines(shard), "-inf", now_ms, start=0, num=count)
        return _texts(owners)

    async def settle_due(self, shard: int, owners: Sequence[str], before_ms: int | None = None) -> None:
        """These owners have been looked at; `before_ms`: except those that were put in again for a time after it."""
        if not owners:
            return
        if before_ms is None:
            await self.redis.zrem(keys.deadlines(shard), *owners)
            return
        batch = self.batch()
        batch.add(_verbs.settle_due(shard, owners, before_ms), int)
        await batch.run()

    async def add_outcomes(self, records: Iterable[OutcomeRecord]) -> None:
        """Hand outcomes to the recorder."""
        batch = self.batch()
        for record in records:
            batch.insist(("XADD", keys.OUTCOMES, "*", "o", record.to_wire()), bytes)
        if batch:
            await batch.run()

    async def join_outcomes(self) -> None:
        """Make the consumer group of the outcomes stream, where it is missing."""
        await self._make_group(keys.OUTCOMES, keys.OUTCOMES_GROUP)

    async def read_outcomes(self, consumer: str, *, count: int, block_ms: int, again: bool = False) -> list[tuple[bytes, bytes]]:
        """Record id and JSON of outcomes; `again`: those this consumer read before and has not settled."""
        start = "0" if again else ">"
        found = await self.redis.xreadgroup(
            keys.OUTCOMES_GROUP, consumer, {keys.OUTCOMES: start}, count=count, block=None if again else block_ms
        )
        return [(record_id, fields[b"o"]) for _, records in _streams(found) for record_id, fields in records if fields]

    async def claim_stale_outcomes(self, consumer: str, *, idle_ms: int, count: int) -> list[tuple[bytes, bytes]]:
        """Outcomes that another recorder took and has not settled for `idle_ms`."""
        found = await self.redis.xautoclaim(keys.OUTCOMES, keys.OUTCOMES_GROUP, consumer, idle_ms, count=count)
        return [(record_id, fields[b"o"]) for record_id, fields in found[1] if fields]

    async def settle_outcomes(self, record_ids: Sequence[bytes]) -> None:
        """These outcomes are on disk."""
        if record_ids:
            pipe = self.redis.pipeline(transaction=False)
            pipe.xack(keys.OUTCOMES, keys.OUTCOMES_GROUP, *record_ids)
            pipe.xdel(keys.OUTCOMES, *record_ids)
            await pipe.execute()

    async def register_digest(self, digest: str, seq: int, window_ms: int) -> int:
        """The seq of the first trigger with this digest within the window: `seq` itself, or the one that this one repeats."""
        first = await self.redis.set(keys.dedupe(digest), seq, nx=True, get=True, px=window_ms)
        return seq if first is None else int(first)

    async def is_loaded(self) -> bool:
        """Whether the queues hold everything pending; false after Redis was wiped, until a rebuild."""
        marks = keys.loaded_marks(of_cluster=is_cluster(self.redis))
        return bool(await self.redis.exists(*marks) == len(marks))

    async def mark_loaded(self, now_ms: int) -> None:
        """The queues hold everything pending."""
        for mark in keys.loaded_marks(of_cluster=is_cluster(self.redis)):
            await self.redis.set(mark, now_ms)

    async def _make_group(self, stream: str, group: str) -> None:
        try:
            await self.redis.xgroup_create(stream, group, id="0", mkstream=True)
        except OutOfMemoryError:  # said before Redis looks whether there is anything to make
            groups: Any = await self.redis.xinfo_groups(stream)
            if group not in {_as_text(each["name"]) for each in groups}:
                raise
        except ResponseError as exc:
            if "BUSYGROUP" not in str(exc):
                raise


def _bytes(replies: Any) -> list[bytes | None]:
    """Replies of a client that does not decode."""
    return list(replies)


def _as_text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _texts(replies: Any) -> list[str]:
    return [reply.decode() for reply in replies]


def _streams(found: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """One shape for what XREADGROUP gives under RESP2 (a list) and RESP3 (a map of lists of lists)."""
    if not found:
        return []
    if isinstance(found, dict):
        return [(name, records[0] if records and isinstance(records[0], list) else records) for name, records in found.items()]
    return [(name, records) for name, records in found]


def _wakes(shard: int, records: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Wake]:
    return [_wake(shard, record_id, fields) for record_id, fields in records if fields]


def _wake(shard: int, record_id: bytes, fields: dict[bytes, bytes]) -> Wake:
    owners = fields[b"owners"].decode().split("\n")
    if b"trigger" not in fields:
        return Wake(shard, record_id, owners)
    seq, request_id, data_id = fields[b"trigger"].decode().split(" ")  # no name holds a space
    return Wake(shard, record_id, owners, (int(seq), request_id, data_id))


def _shard(stream: bytes) -> int:
    return int(stream.rpartition(b":")[2])
