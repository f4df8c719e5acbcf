"""Owners to check: the wake-up streams name owners with new entries, and the deadline index owners with overdue entries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manifold.contracts import keys
from manifold.queues import _commands
from manifold.queues._batch import Batch
from manifold.queues._commands import TriggerName
from manifold.queues._streams import Streams, records_of, texts


@dataclass(frozen=True, slots=True)
class Wake:
    """One record of a wake-up stream."""

    shard: int
    record_id: bytes
    owners: list[str]
    trigger: TriggerName | None = None  # set if the record is about a single trigger


class WakeStreams(Streams):
    """The wake-up streams and the deadline index, which dispatchers read.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def wake(self, owners: Iterable[str], trigger: TriggerName | None = None) -> None:
        """Notify the dispatchers of owners that have something to claim, even if Redis is out of memory.

        If `trigger` is given, everything that they can claim belongs to this trigger.
        """
        batch = self.batch()
        batch.wake(owners, trigger)
        if batch:
            await batch.run()

    async def join_wakes(self) -> None:
        """Create the consumer groups of the wake-up streams if they are missing."""
        for shard in range(self.policy.wake_shards):
            await self.make_group(keys.wake(shard), keys.WAKE_GROUP)

    async def read_wakes(self, consumer: str, *, count: int, block_ms: int, settled: Iterable[Wake] = ()) -> list[Wake]:
        """Remove the `settled` wake-ups and read new ones for this consumer, in one round trip.

        Waits up to `block_ms` for a new wake-up; 0: forever.
        """
        streams = [keys.wake(shard) for shard in range(self.policy.wake_shards)]
        batch = self.batch()
        _settle(batch, settled)
        options = ("COUNT", count, "BLOCK", block_ms, "STREAMS", *streams, *[">"] * len(streams))
        batch.call(("XREADGROUP", "GROUP", keys.WAKE_GROUP, consumer, *options), records_of)
        *_, records_by_stream = await batch.run()  # the reply to the last command, XREADGROUP
        wakes: list[Wake] = []
        for stream, records in records_by_stream:
            wakes += _wakes(_shard(stream), records)
        return wakes

    async def claim_stale_wakes(self, consumer: str, *, idle_ms: int, count: int) -> list[Wake]:
        """Take over wake-ups that another consumer has read but not settled for `idle_ms`, because it is dead or stuck.

        Returns up to `count` wake-ups of each shard.
        """
        wakes: list[Wake] = []
        for shard in range(self.policy.wake_shards):
            reply = await self.redis.xautoclaim(keys.wake(shard), keys.WAKE_GROUP, consumer, idle_ms, count=count)
            records = reply[1]  # after the cursor of the next call
            wakes += _wakes(shard, records)
        return wakes

    async def settle_wakes(self, wakes: Iterable[Wake]) -> None:
        """Remove these wake-ups, which have been handled."""
        batch = self.batch()
        _settle(batch, wakes)
        await batch.run()

    async def due(self, shard: int, now_ms: int, count: int) -> list[str]:
        """Read up to `count` owners of this shard whose deadline is at or before `now_ms`, the earliest first.

        They stay in the deadline index until `settle_due` removes them.
        """
        owners = await self.redis.zrangebyscore(keys.deadlines(shard), "-inf", now_ms, start=0, num=count)
        return texts(owners)

    async def settle_due(self, shard: int, owners: Sequence[str], before_ms: int | None = None) -> None:
        """Remove owners from the deadline index.

        With `before_ms`, keep the owners whose deadline is now after `before_ms`: it has changed since they were read.
        """
        if not owners:
            return
        if before_ms is None:
            await self.redis.zrem(keys.deadlines(shard), *owners)
            return
        batch = self.batch()
        batch.call(_commands.settle_due(shard, owners, before_ms), int)
        await batch.run()


def _settle(batch: Batch, wakes: Iterable[Wake]) -> None:
    """Add the commands that remove these wake-ups from their streams."""
    ids_by_shard: dict[int, list[bytes]] = {}
    for wake in wakes:
        ids_by_shard.setdefault(wake.shard, []).append(wake.record_id)
    for shard, record_ids in ids_by_shard.items():
        batch.call(("XACK", keys.wake(shard), keys.WAKE_GROUP, *record_ids), int)
        batch.call(("XDEL", keys.wake(shard), *record_ids), int)


def _wakes(shard: int, records: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Wake]:
    """Parse the records of a stream, except those without fields: they were deleted after another consumer had read them."""
    return [_wake(shard, record_id, fields) for record_id, fields in records if fields]


def _wake(shard: int, record_id: bytes, fields: dict[bytes, bytes]) -> Wake:
    owners = fields[b"owners"].decode().split("\n")
    if b"trigger" not in fields:
        return Wake(shard, record_id, owners)
    seq, request_id, data_id = fields[b"trigger"].decode().split(" ")  # names contain no spaces
    return Wake(shard, record_id, owners, (int(seq), request_id, data_id))


def _shard(stream: bytes) -> int:
    """The shard in the name of a wake-up stream, `{wake}:<shard>`."""
    _, _, shard = stream.rpartition(b":")
    return int(shard)
