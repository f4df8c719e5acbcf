"""The queue statistics for the console: the last ones that a dispatcher saved, or those of a walk now."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from redis.asyncio import Redis

from console._output import err
from contracts.errors import Retryable
from contracts.seq import wall_clock_ms
from contracts.settings import Settings
from queues import NAMED_QUEUES, Policy, QueueStats, connect, walk

Named = list[tuple[str, int]]
KEYS_A_SLICE = 1000  # Redis stands still for some 2 ms
Fresh = Annotated[bool, typer.Option("--fresh", help="Count now, instead of reading what a dispatcher counted last.")]


async def queue_stats_of(settings: Settings, redis: Redis, *, fresh: bool) -> QueueStats:
    """The last queue statistics, or a new one where `fresh`.

    Raises:
        Retryable: none has been taken yet.
    """
    if fresh:
        stats, policy = QueueStats(wall_clock_ms()), Policy.of(settings)
        async for _ in walk(redis, policy, stats, keys_a_slice=KEYS_A_SLICE):
            pass
        await stats.save(redis, policy)
        return stats
    found = await QueueStats.load(redis)
    if found is None:
        raise Retryable("no dispatcher has counted yet; is the platform up? See `manifold status`, or count now with --fresh")
    return found


async def top_queues(
    settings: Settings,
    count: int,
    *,
    fresh: bool,
    named: Callable[[QueueStats], tuple[Named, Named]],
    read: Callable[[Redis, list[str]], Awaitable[list[dict[str, Any]]]],
    length: str,
) -> tuple[QueueStats, dict[str, list[dict[str, Any]]]]:
    """The queue statistics, and the `longest` and `oldest` queues that `named` takes from them, as `read` finds them now.

    `length` is the field by which the longest come first; the oldest are in the order of `oldest_at`.

    Raises:
        Retryable: no statistics have been taken yet.
    """
    async with connect(settings.redis) as redis:
        stats = await queue_stats_of(settings, redis, fresh=fresh)
        longest, oldest = [await read(redis, [owner for owner, _ in some]) for some in named(stats)]
    longest.sort(key=lambda queue: -queue[length])
    oldest.sort(key=lambda queue: queue["oldest_at"])
    return stats, {"longest": longest[:count], "oldest": oldest[:count]}


def aged(stats: QueueStats) -> dict[str, Any]:
    """Every count, and how old they are; for JSON."""
    counts = {name: value for name, value in asdict(stats).items() if name not in (*NAMED_QUEUES, "spoilt")}
    return {"age_seconds": age_s(stats), **counts}


def age_s(stats: QueueStats) -> float:
    """The age of the statistics in seconds, from the beginning of the walk."""
    return round((wall_clock_ms() - stats.at_ms) / 1000, 1)


def print_age(stats: QueueStats) -> None:
    """Say how old the counts are."""
    err.print(f"counted {age_s(stats):.0f} s ago; --fresh counts now", highlight=False)
