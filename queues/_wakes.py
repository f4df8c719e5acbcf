"""Whom to look at: wake-up streams for owners with something new, and an index of deadlines for those that may be overdue."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contracts import keys
from queues import _commands
from queues._batch import Batch
from queues._streams import Streams, records_of, texts

OWNERS_A_WAKE = 1000


@dataclass(frozen=True, slots=True)
class Wake:
    """One record of a wake-up stream."""

    shard: int
    record_id: bytes
    owners: list[str]
    trigger: tuple[int, str, str] | None = None  # seq, request_id, data_id, where the record tells of a single trigger


class WakeStreams(Streams):
    """Which owners the dispatchers should look at.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses.
    """

    async def wake(self, owners: Iterable[str]) -> None:
        """Tell the dispatchers that these owners have something to claim, full as Redis may be: delivering makes room."""
        by_shard: dict[int, list[str]] = {}
        for owner in owners:
            by_shard.setdefault(keys.shard_of(owner, self.policy.wake_shards), []).append(owner)
        batch = self.batch()
        for shard, some in by_shard.items():
            for start in range(0, len(some), OWNERS_A_WAKE):
                batch.call(_commands.wake(shard, some[start : start + OWNERS_A_WAKE]), bytes, run_despite_oom=True)
        if batch:
            await batch.run()

    async def join_wakes(self) -> None:
        """Make the consumer groups of the wake-up streams, where they are missing."""
        for shard in range(self.policy.wake_shards):
            await self.make_group(keys.wake(shard), keys.WAKE_GROUP)

    async def read_wakes(self, consumer: str, *, count: int, block_ms: int, settled: Iterable[Wake] = ()) -> list[Wake]:
        """New wake-ups for this consumer, waiting up to `block_ms` (0 is for ever); `settled` ones are dealt with, as it goes."""
        streams = [keys.wake(shard) for shard in range(self.policy.wake_shards)]
        batch = self.batch()
        _settle(batch, settled)
        options = ("COUNT", count, "BLOCK", block_ms, "STREAMS", *streams, *[">"] * len(streams))
        batch.call(("XREADGROUP", "GROUP", keys.WAKE_GROUP, consumer, *options), records_of)
        found = (await batch.run())[-1]
        return [wake for name, records in found for wake in _wakes(_shard(name), records)]

    async def claim_stale_wakes(self, consumer: str, *, idle_ms: int, count: int) -> list[Wake]:
        """Wake-ups that another consumer took and has not settled for `idle_ms`: it is dead or stuck."""
        taken: list[Wake] = []
        for shard in range(self.policy.wake_shards):
            found = await self.redis.xautoclaim(keys.wake(shard), keys.WAKE_GROUP, consumer, idle_ms, count=count)
            taken += _wakes(shard, found[1])
        return taken

    async def settle_wakes(self, wakes: Iterable[Wake]) -> None:
        """These wake-ups are dealt with."""
        batch = self.batch()
        _settle(batch, wakes)
        await batch.run()

    async def due(self, shard: int, now_ms: int, count: int) -> list[str]:
        """Owners of this shard whose in-flight entry may be overdue, soonest first. They stay in the index until `settle_due`."""
        owners = await self.redis.zrangebyscore(keys.deadlines(shard), "-inf", now_ms, start=0, num=count)
        return texts(owners)

    async def settle_due(self, shard: int, owners: Sequence[str], before_ms: int | None = None) -> None:
        """These owners have been looked at; `before_ms`: except those that were put in again for a time after it."""
        if not owners:
            return
        if before_ms is None:
            await self.redis.zrem(keys.deadlines(shard), *owners)
            return
        batch = self.batch()
        batch.call(_commands.settle_due(shard, owners, before_ms), int)
        await batch.run()


def _settle(batch: Batch, wakes: Iterable[Wake]) -> None:
    by_shard: dict[int, list[bytes]] = {}
    for wake in wakes:
        by_shard.setdefault(wake.shard, []).append(wake.record_id)
    for shard, ids in by_shard.items():
        batch.call(("XACK", keys.wake(shard), keys.WAKE_GROUP, *ids), int)
        batch.call(("XDEL", keys.wake(shard), *ids), int)


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
