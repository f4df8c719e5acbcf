"""The census as the console reads it: the last one that a dispatcher left, or a walk now."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from redis.asyncio import Redis

from console._output import err
from contracts.errors import Retryable
from contracts.seq import wall_clock_ms
from contracts.settings import Settings
from queues import Census, Policy, walk

KEYS_A_SLICE = 1000  # Redis stands still for some 2 ms
Fresh = Annotated[bool, typer.Option("--fresh", help="Count now, instead of reading what a dispatcher counted last.")]


async def census_of(settings: Settings, redis: Redis, *, fresh: bool) -> Census:
    """The last census, or a new one where `fresh`.

    Raises:
        Retryable: none has been taken yet.
    """
    if fresh:
        census, policy = Census(wall_clock_ms()), Policy.of(settings)
        async for _ in walk(redis, policy, census, keys_a_slice=KEYS_A_SLICE):
            pass
        await census.save(redis, policy)
        return census
    found = await Census.load(redis)
    if found is None:
        raise Retryable("no dispatcher has counted yet; is the platform up? See `manifold status`, or count now with --fresh")
    return found


def aged(census: Census) -> dict[str, Any]:
    """Every count, and how old they are; for JSON."""
    counts = {name: value for name, value in asdict(census).items() if name not in ("longest", "oldest", "spoilt")}
    return {"age_seconds": age_s(census), **counts}


def age_s(census: Census) -> float:
    """How long ago it was begun."""
    return round((wall_clock_ms() - census.at_ms) / 1000, 1)


def print_age(census: Census) -> None:
    """Say how old the counts are."""
    err.print(f"counted {age_s(census):.0f} s ago; --fresh counts now", highlight=False)
