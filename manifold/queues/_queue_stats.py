"""Queue statistics: totals over all queues, counted by a slow scan of all keys, since there is no index of owners."""

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

from manifold.contracts import keys
from manifold.contracts.seq import MAX_SEQ, seq_of
from manifold.queues._batch import Batch
from manifold.queues._cluster import is_cluster
from manifold.queues._commands import QUEUE_STATS, save_queue_stats
from manifold.queues._drivers import AsyncBatch, drive
from manifold.queues._policy import Policy
from manifold.queues._scripts import Args

MAX_NAMED_QUEUES = 20  # queues named by the statistics: the longest, and those with the oldest entries
NAMED_QUEUES = ("longest", "oldest", "ecq_longest", "ecq_oldest")  # fields that name queues
COUNTS = (  # in the order of queue_stats.lua
    *("keys", "known", "present", "unsubscribed", "queues", "pending", "parked", "in_flight", "remembered"),
    *("ecq_queues", "ecq_pending", "ecq_live", "ecq_in_flight"),
)
Named = list[tuple[str, int]]


@dataclass(slots=True)
class QueueStats:
    """Totals over all queues. The queues change during the scan, so sums are approximate."""

    at_ms: int  # when the scan began
    seconds: float = 0.0  # spent by Redis and this process, without pauses
    keys: int = 0  # of any kind
    known: int = 0  # vehicles with a presence key
    present: int = 0  # of them, present and subscribed
    unsubscribed: int = 0  # of them, present but not subscribed
    queues: int = 0  # vehicles with something pending
    pending: int = 0  # entries, without those in flight
    parked: int = 0
    in_flight: int = 0
    remembered: int = 0  # ended entries that the lake may not know yet
    longest: Named = field(default_factory=list)  # owner and entries, most first
    oldest: Named = field(default_factory=list)  # owner and seq of its oldest pending entry, oldest first
    spoilt: list[str] = field(default_factory=list)  # some of the keys with a wrong type, which are not counted
    ecq_queues: int = 0  # clients with something pending in their compacted queues
    ecq_pending: int = 0  # messages of compacted queues, without those in flight
    ecq_live: int = 0  # newest message of each key, acknowledged or not
    ecq_in_flight: int = 0
    ecq_longest: Named = field(default_factory=list)  # client id and messages, most first
    ecq_oldest: Named = field(default_factory=list)  # client id and seq of its oldest pending message, oldest first

    def take(
        self,
        counts: list[int],
        longest: list[Any],
        oldest: list[Any],
        spoilt: list[bytes],
        ecq_counts: list[int],
        ecq_longest: list[Any],
        ecq_oldest: list[Any],
    ) -> None:
        """Add the reply of queue_stats.lua for one slice of the keys."""
        found = dict(zip(COUNTS, (*counts, *ecq_counts), strict=True))
        found["pending"] -= found["in_flight"]  # an entry in flight is in its queue, too
        found["ecq_pending"] -= found["ecq_in_flight"]
        for name, count in found.items():
            setattr(self, name, getattr(self, name) + count)
        self.longest, self.oldest = _most(self.longest, longest), _least(self.oldest, oldest)
        self.ecq_longest, self.ecq_oldest = _most(self.ecq_longest, ecq_longest), _least(self.ecq_oldest, ecq_oldest)
        self.spoilt = list(dict.fromkeys(self.spoilt + [key.decode(errors="replace") for key in spoilt]))[:MAX_NAMED_QUEUES]

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """The length above which, and the oldest seq below which, a queue is named; then the same for compacted queues."""
        return _shortest(self.longest), _youngest(self.oldest), _shortest(self.ecq_longest), _youngest(self.ecq_oldest)

    async def save(self, redis: Redis, policy: Policy) -> None:
        """Save these statistics in Redis, unless those of a later scan are there.

        Raises:
            redis.RedisError: Redis is unavailable or rejects a command.
        """
        fields = {name: json.dumps(getattr(self, name)) for name in self.__slots__}
        batch = AsyncBatch(redis, policy)
        batch.call(save_queue_stats(self.at_ms, fields), bool)
        batch.call(("UNLINK", keys.FORMER_QUEUE_STATS), int)
        await batch.run()

    @classmethod
    async def load(cls, redis: Redis) -> "QueueStats | None":
        """Load the last statistics from Redis; None if there are none."""
        raw: dict[bytes, bytes] = await cast(Any, redis.hgetall(keys.QUEUE_STATS))
        if not raw:
            return None
        fields = {name.decode(): json.loads(value) for name, value in raw.items() if name.decode() in cls.__slots__}
        stats = cls(**fields)
        for name in NAMED_QUEUES:
            setattr(stats, name, [(owner, n) for owner, n in getattr(stats, name)])
        return stats


async def walk(
    redis: Redis, policy: Policy, stats: QueueStats, *, keys_a_slice: int, every: bool = False
) -> AsyncIterator[list[str]]:
    """Scan all keys into `stats`, slice by slice; yield, for each slice, the queues that have an expired entry.

    With `every`, yield all fanout queues that have an entry.

    A slice blocks Redis for one to two milliseconds per 1,000 keys. The caller may pause between slices.

    Raises:
        redis.RedisError: Redis is unavailable or rejects a command.
    """
    expired = MAX_SEQ if every else seq_of(stats.at_ms - policy.retention_ms, 0, 0) - 1
    ecq_expired = policy.ecq_pending_from(stats.at_ms) - 1
    limits = (stats.at_ms, policy.presence_ms, max(0, expired))
    for node in await _nodes(redis):
        cursor = b"0"
        while True:
            began = time.perf_counter()
            args = (0, cursor, keys_a_slice, *limits, *stats.limits, max(0, ecq_expired))
            cursor, counts, longest, oldest, expired_owners, spoilt, *of_ecq = await _scan_slice(redis, policy, node, args)
            stats.take(counts, longest, oldest, spoilt, *of_ecq)
            stats.seconds += time.perf_counter() - began
            yield [owner.decode() for owner in expired_owners]
            if cursor == b"0":
                break


async def _nodes(redis: Redis) -> list[dict[str, Any]]:
    """The keyword arguments that address each node that holds keys."""
    if not is_cluster(redis):
        return [{}]
    await cast(Any, redis.ping())  # an unused client does not know its nodes yet
    return [{"target_nodes": node} for node in cast(RedisCluster, redis).get_primaries()]


async def _scan_slice(redis: Redis, policy: Policy, node: dict[str, Any], args: Args) -> Any:
    async def execute(commands: list[Args]) -> list[Any]:
        try:
            return [await redis.execute_command(*command, **node) for command in commands]
        except ResponseError as exc:
            return [exc]  # the batch has one command, and this is its reply

    batch = Batch(policy, of_cluster=False)  # each node is addressed on its own
    batch.call(("EVALSHA", QUEUE_STATS.sha, *args), list)
    return (await drive(batch.exchanges(), execute))[0]


def _most(known: Named, found: list[Any]) -> Named:
    return nlargest(MAX_NAMED_QUEUES, dict(known + _pairs(found)).items(), itemgetter(1))  # SCAN may return a key twice


def _least(known: Named, found: list[Any]) -> Named:
    return nsmallest(MAX_NAMED_QUEUES, dict(known + _pairs(found)).items(), itemgetter(1))


def _shortest(longest: Named) -> int:
    return longest[-1][1] if len(longest) == MAX_NAMED_QUEUES else 0


def _youngest(oldest: Named) -> int:
    return oldest[-1][1] if len(oldest) == MAX_NAMED_QUEUES else MAX_SEQ


def _pairs(flat: list[Any]) -> Named:
    return [(owner.decode(), int(number)) for owner, number in zip(flat[::2], flat[1::2], strict=True)]
