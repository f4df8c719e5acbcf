"""Queue statistics: what all queues hold together, counted by a slow walk over all keys. There is no index of owners to keep."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ResponseError

from contracts import keys
from contracts.seq import MAX_SEQ, seq_of
from queues._batch import Batch
from queues._cluster import is_cluster
from queues._commands import QUEUE_STATS, save_queue_stats
from queues._drivers import AsyncBatch, converse
from queues._policy import Policy
from queues._scripts import Args

NAMED = 20  # queues that the statistics name: the longest, and those with the oldest entries
Named = list[tuple[str, int]]


@dataclass(slots=True)
class QueueStats:
    """What the queues hold. Counted during a walk in which they changed, so the sums are near, not exact."""

    at_ms: int  # when the walk began
    seconds: float = 0.0  # that the walk took of Redis and this process, pauses left out
    keys: int = 0  # of any kind
    known: int = 0  # vehicles of whose connection something is known
    present: int = 0  # of them, here and listening
    unsubscribed: int = 0  # of them, here and not listening
    queues: int = 0  # vehicles with something pending
    pending: int = 0  # entries; those in flight left out
    parked: int = 0
    in_flight: int = 0
    remembered: int = 0  # entries that ended and that the lake may not know yet
    longest: Named = field(default_factory=list)  # owner and entries, most first
    oldest: Named = field(default_factory=list)  # owner and seq of its oldest pending entry, oldest first
    spoilt: list[str] = field(default_factory=list)  # some of the keys that hold another type than they should: left out

    def take(self, counts: list[int], longest: list[Any], oldest: list[Any], spoilt: list[bytes]) -> None:
        """Add what one slice has found."""
        seen, known, present, unsubscribed, queues, entries, parked, in_flight, remembered = counts
        self.keys += seen
        self.known += known
        self.present += present
        self.unsubscribed += unsubscribed
        self.queues += queues
        self.pending += entries - in_flight  # what is in flight counts among a queue's entries
        self.parked += parked
        self.in_flight += in_flight
        self.remembered += remembered
        by_number = itemgetter(1)
        self.longest = nlargest(NAMED, dict(self.longest + _pairs(longest)).items(), by_number)  # a walk may see a key twice
        self.oldest = nsmallest(NAMED, dict(self.oldest + _pairs(oldest)).items(), by_number)
        self.spoilt = list(dict.fromkeys(self.spoilt + [key.decode(errors="replace") for key in spoilt]))[:NAMED]

    @property
    def longer(self) -> int:
        """The length that a queue must be over to be among the longest."""
        return self.longest[-1][1] if len(self.longest) == NAMED else 0

    @property
    def older(self) -> int:
        """The seq that a queue's oldest entry must be below to be among the oldest."""
        return self.oldest[-1][1] if len(self.oldest) == NAMED else MAX_SEQ

    async def save(self, redis: Redis, policy: Policy) -> None:
        """Leave it in Redis for whoever asks, unless one that began later lies there already.

        Raises:
            redis.RedisError: Redis is away or refuses.
        """
        fields = {name: json.dumps(getattr(self, name)) for name in self.__slots__}
        batch = AsyncBatch(redis, policy)
        batch.call(save_queue_stats(self.at_ms, fields), bool)
        await batch.run()

    @classmethod
    async def load(cls, redis: Redis) -> "QueueStats | None":
        """The last one that was taken; None if there is none."""
        raw: dict[bytes, bytes] = await cast(Any, redis.hgetall(keys.QUEUE_STATS))
        if not raw:
            return None
        fields = {name.decode(): json.loads(value) for name, value in raw.items() if name.decode() in cls.__slots__}
        stats = cls(**fields)
        stats.longest, stats.oldest = ([(owner, n) for owner, n in named] for named in (stats.longest, stats.oldest))
        return stats


async def walk(redis: Redis, policy: Policy, stats: QueueStats, *, keys_a_slice: int) -> AsyncIterator[list[str]]:
    """Walk over all keys, slice by slice, into `stats`; gives the owners of each slice that have an expired entry.

    Redis stands still for a slice: 1,000 keys take it about a millisecond or two. Pause between slices as you like.

    Raises:
        redis.RedisError: Redis is away or refuses.
    """
    expired = seq_of(stats.at_ms - policy.retention_ms, 0, 0) - 1
    limits = (stats.at_ms, policy.presence_ms, max(0, expired))
    for node in await _nodes(redis):
        cursor = b"0"
        while True:
            began = time.perf_counter()
            args = (0, cursor, keys_a_slice, *limits, stats.longer, stats.older)
            cursor, counts, longest, oldest, expired_owners, spoilt = await _look(redis, policy, node, args)
            stats.take(counts, longest, oldest, spoilt)
            stats.seconds += time.perf_counter() - began
            yield [owner.decode() for owner in expired_owners]
            if cursor == b"0":
                break


async def _nodes(redis: Redis) -> list[dict[str, Any]]:
    """How to address each node that holds keys."""
    if not is_cluster(redis):
        return [{}]
    await cast(Any, redis.ping())  # a client that was not used yet knows none
    return [{"target_nodes": node} for node in cast(RedisCluster, redis).get_primaries()]


async def _look(redis: Redis, policy: Policy, node: dict[str, Any], args: Args) -> Any:
    async def execute(commands: list[Args]) -> list[Any]:
        try:
            return [await redis.execute_command(*command, **node) for command in commands]
        except ResponseError as exc:
            return [exc]

    batch = Batch(policy, of_cluster=False)  # of one node
    batch.call(("EVALSHA", QUEUE_STATS.sha, *args), list)
    return (await converse(batch.talk(), execute))[0]


def _pairs(flat: list[Any]) -> Named:
    return [(owner.decode(), int(number)) for owner, number in zip(flat[::2], flat[1::2], strict=True)]
