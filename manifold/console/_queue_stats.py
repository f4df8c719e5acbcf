"""Queue statistics for the console: the last ones saved by a dispatcher, or those of a scan now."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from redis.asyncio import Redis

from manifold.console._output import err, out, print_json, settings_or_fail, table
from manifold.contracts.errors import Retryable
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import NAMED_QUEUES, Policy, QueueStats, connect, walk
from manifold.settings import Settings

Named = list[tuple[str, int]]  # queues named by the statistics: owner, and the length of the queue or the seq of its oldest entry
KEYS_PER_SLICE = 1000  # blocks Redis for some 2 ms
HowMany = Annotated[int, typer.Option("--count", min=1, max=20, help="Queues of each kind.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Count now, instead of reading what a dispatcher counted last.")]


async def queue_stats_of(settings: Settings, redis: Redis, *, fresh: bool) -> QueueStats:
    """Return the last queue statistics; with `fresh`, scan now and save the result.

    Raises:
        Retryable: none were saved yet.
    """
    if fresh:
        stats, policy = QueueStats(wall_clock_ms()), Policy.of(settings)
        async for _ in walk(redis, policy, stats, keys_a_slice=KEYS_PER_SLICE):
            pass
        await stats.save(redis, policy)
        return stats
    found = await QueueStats.load(redis)
    if found is None:
        raise Retryable("no dispatcher has counted yet; is the platform up? See `manifold status`, or count now with --fresh")
    return found


@dataclass(frozen=True, slots=True)
class TopQueues:
    """How to read and print the longest queues and those with the oldest entries: of vehicles, or compacted queues."""

    named: Callable[[QueueStats], tuple[Named, Named]]  # selects the longest and the oldest queues from the statistics
    read: Callable[[Redis, list[str]], Awaitable[list[dict[str, Any]]]]  # reads the current state of the queues of these owners
    length: str  # the field of a queue's state that has its length
    title: str  # of the table of the longest queues
    columns: tuple[str, ...]  # of both tables: the titles of the fields of a queue's state

    def show(self, count: int, *, fresh: bool, as_json: bool) -> None:
        """Print the current state of the longest queues and those with the oldest entries.

        Raises:
            Retryable: no statistics were saved yet.
        """
        stats, longest, oldest = asyncio.run(self._read(settings_or_fail(), fresh=fresh))
        longest = sorted(longest, key=lambda queue: -queue[self.length])[:count]
        oldest = sorted(oldest, key=lambda queue: queue["oldest_at"])[:count]
        if as_json:
            print_json({"queue_stats": counts_and_age(stats), "longest": longest, "oldest": oldest})
            return
        for title, queues in ((self.title, longest), ("oldest pending", oldest)):
            out.print(table(title, self.columns, [tuple(queue.values()) for queue in queues]))
        print_age(stats)

    async def _read(self, settings: Settings, *, fresh: bool) -> tuple[QueueStats, list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the statistics, and the current states of the longest and of the oldest queues that they name."""
        async with connect(settings.redis) as redis:
            stats = await queue_stats_of(settings, redis, fresh=fresh)
            longest_named, oldest_named = self.named(stats)
            longest = await self.read(redis, [owner for owner, _ in longest_named])
            oldest = await self.read(redis, [owner for owner, _ in oldest_named])
        return stats, longest, oldest


def counts_and_age(stats: QueueStats) -> dict[str, Any]:
    """Return the statistics for JSON: their age and all counts, without the queues and keys that they name."""
    without = (*NAMED_QUEUES, "spoilt")
    counts = {name: value for name, value in asdict(stats).items() if name not in without}
    return {"age_seconds": age_s(stats), **counts}


def age_s(stats: QueueStats) -> float:
    """Return the age of the statistics in seconds, since the start of the scan."""
    return round((wall_clock_ms() - stats.at_ms) / 1000, 1)


def print_age(stats: QueueStats) -> None:
    """Print the age of the statistics, on stderr."""
    err.print(f"counted {age_s(stats):.0f} s ago; --fresh counts now", highlight=False)
