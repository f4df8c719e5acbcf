"""Queue statistics: totals over all queues, from a slow scan of all keys, because there is no index of owners."""

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
    seconds: float = 0.0  # time that Redis and this process have spent, without pauses
    keys: int = 0  # all keys of any kind
    known: int = 0  # vehicles with a presence key
    present: int = 0  # known vehicles that are present and subscribed
    unsubscribed: int = 0  # known vehicles that are present but not subscribed
    queues: int = 0  # vehicles with something pending
    pending: int = 0  # entries, without those in flight
    parked: int = 0
    in_flight: int = 0
    remembered: int = 0  # ended entries that the lake may not know yet
    longest: Named = field(default_factory=list)  # owner and entries, most first
    oldest: Named = field(default_factory=list)  # owner and seq of the owner's oldest pending entry, oldest first
    spoilt: list[str] = field(default_factory=list)  # some of the corrupt keys, which are not counted
    ecq_queues: int = 0  # clients with something pending in their compacted queues
    ecq_pending: int = 0  # messages of compacted queues, without those in flight
    ecq_live: int = 0  # newest message of each key, acknowledged or not
    ecq_in_flight: int = 0
    ecq_longest: Named = field(default_factory=list)  # client id and messages, most first
    ecq_oldest: Named = field(default_factory=list)  # client id and seq of the client's oldest pending message, oldest first

    def add_slice(
        self,
        counts: list[int],
        longest: list[Any],
        oldest: list[Any],
        spoilt: list[bytes],
        ecq_counts: list[int],
        ecq_longest: list[Any],
        ecq_oldest: list[Any],
    ) -> None:
        """Add the parts of the reply of queue_stats.lua for one slice of the keys; the script describes them."""
        by_name = dict(zip(COUNTS, (*counts, *ecq_counts), strict=True))
        by_name["pending"] -= by_name["in_flight"]  # the script counts an entry in flight as pending, too
        by_name["ecq_pending"] -= by_name["ecq_in_flight"]
        for name, count in by_name.items():
            setattr(self, name, getattr(self, name) + count)
        self.longest = _largest(self.longest, longest)
        self.oldest = _smallest(self.oldest, oldest)
        self.ecq_longest = _largest(self.ecq_longest, ecq_longest)
        self.ecq_oldest = _smallest(self.ecq_oldest, ecq_oldest)
        new_spoilt = [key.decode(errors="replace") for key in spoilt]
        self.spoilt = list(dict.fromkeys(self.spoilt + new_spoilt))[:MAX_NAMED_QUEUES]

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """The limits beyond which queue_stats.lua names a queue of the next slice, in the order of its arguments.

        They are the length above which a fanout queue is named, the oldest seq below which it is named, and the same two limits
        for compacted queues.
        """
        return _min_length(self.longest), _max_seq(self.oldest), _min_length(self.ecq_longest), _max_seq(self.ecq_oldest)

    async def save(self, redis: Redis, policy: Policy) -> None:
        """Save these statistics in Redis, unless Redis has those of a later scan.

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
        for name in NAMED_QUEUES:  # JSON has no tuples, so each pair was loaded as a list
            setattr(stats, name, [(owner, number) for owner, number in getattr(stats, name)])
        return stats


async def walk(
    redis: Redis, policy: Policy, stats: QueueStats, *, keys_a_slice: int, all_fanout_queues: bool = False
) -> AsyncIterator[list[str]]:
    """Scan all keys slice by slice, add them to `stats`, and yield the queues of each slice that have an expired entry.

    With `all_fanout_queues`, yield all fanout queues that have an entry, and the compacted queues that have an expired message.

    A slice blocks Redis for one to two milliseconds per 1,000 keys. The caller may pause between slices.

    Raises:
        redis.RedisError: Redis is unavailable or rejects a command.
    """
    # A queue is yielded if the seq of its oldest entry is at most this one; with MAX_SEQ, every queue with an entry is.
    expired_seq = MAX_SEQ if all_fanout_queues else seq_of(stats.at_ms - policy.retention_ms, 0, 0) - 1
    ecq_expired_seq = policy.ecq_pending_from(stats.at_ms) - 1
    for node in await _nodes(redis):
        cursor = b"0"
        while True:
            started = time.perf_counter()
            presence_args = (stats.at_ms, policy.presence_ms)
            args = (cursor, keys_a_slice, *presence_args, max(0, expired_seq), *stats.limits, max(0, ecq_expired_seq))
            reply = await _scan_slice(redis, policy, node, args)
            cursor, counts, longest, oldest, expired_owners, spoilt, ecq_counts, ecq_longest, ecq_oldest = reply
            stats.add_slice(counts, longest, oldest, spoilt, ecq_counts, ecq_longest, ecq_oldest)
            stats.seconds += time.perf_counter() - started
            yield [owner.decode() for owner in expired_owners]
            if cursor == b"0":
                break


async def _nodes(redis: Redis) -> list[dict[str, Any]]:
    """Return, for each node that holds keys, the keyword arguments with which `execute_command` addresses the node."""
    if not is_cluster(redis):
        return [{}]
    await cast(Any, redis.ping())  # an unused client does not know its nodes yet
    return [{"target_nodes": node} for node in cast(RedisCluster, redis).get_primaries()]


async def _scan_slice(redis: Redis, policy: Policy, node: dict[str, Any], args: Args) -> Any:
    """Run queue_stats.lua with these arguments on a node, as `_nodes` gives it, and return the raw reply."""

    async def execute(commands: list[Args]) -> list[Any]:
        try:
            return [await redis.execute_command(*command, **node) for command in commands]
        except ResponseError as exc:
            return [exc]  # the reply to the only command of the batch

    batch = Batch(policy, of_cluster=False)  # it runs on a single node, even of a cluster
    batch.call(("EVALSHA", QUEUE_STATS.sha, 0, *args), list)  # 0: the script gets no keys as arguments
    (reply,) = await drive(batch.exchanges(), execute)
    return reply


def _largest(known: Named, flat: list[Any]) -> Named:
    """Join the known queues with those of a reply, and return those with the largest numbers."""
    by_owner = dict(known + _pairs(flat))  # a dict, because SCAN may return a key twice
    return nlargest(MAX_NAMED_QUEUES, by_owner.items(), itemgetter(1))


def _smallest(known: Named, flat: list[Any]) -> Named:
    """Join the known queues with those of a reply, and return those with the smallest numbers."""
    by_owner = dict(known + _pairs(flat))
    return nsmallest(MAX_NAMED_QUEUES, by_owner.items(), itemgetter(1))


def _min_length(longest: Named) -> int:
    """The length that a queue must exceed to enter the list; 0 if the list is not full."""
    return longest[-1][1] if len(longest) == MAX_NAMED_QUEUES else 0


def _max_seq(oldest: Named) -> int:
    """The seq below which a queue's oldest entry must be for the queue to enter the list; MAX_SEQ if the list is not full."""
    return oldest[-1][1] if len(oldest) == MAX_NAMED_QUEUES else MAX_SEQ


def _pairs(flat: list[Any]) -> Named:
    """Parse a flat list of owner and number in turn."""
    return [(owner.decode(), int(number)) for owner, number in zip(flat[::2], flat[1::2], strict=True)]
