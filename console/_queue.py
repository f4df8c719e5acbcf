"""`manifold queue`: which queues are the longest, whose entries are the oldest, and what one of them holds."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any

import typer
from redis.asyncio import Redis

from console._census import Fresh, aged, census_of, print_age
from console._output import USAGE, AsJson, fail, out, print_json, settings_or_fail, speaks_plainly, table
from contracts import keys
from contracts.lives import Life, instant_of
from contracts.names import is_vin
from contracts.outcomes import State
from contracts.seq import datetime_of
from contracts.settings import Settings
from queues import Census, connect

app = typer.Typer(help="The longest queues, the oldest entries, and what one queue holds.", no_args_is_help=True)
How = Annotated[int, typer.Option("--count", min=1, max=20, help="Queues of each kind.")]


@app.command()
@speaks_plainly
def top(count: How = 10, fresh: Fresh = False, as_json: AsJson = False) -> None:
    """The longest queues and those with the oldest entries: found by the last census, looked at again now."""
    settings = settings_or_fail()
    census, queues = asyncio.run(_top(settings, count, fresh))
    if as_json:
        print_json({"census": aged(census), **queues})
        return
    columns = ("vehicle", "entries", "oldest accepted at")
    for title, key in (("longest queues", "longest"), ("oldest pending", "oldest")):
        out.print(table(title, columns, [(q["vin"], q["entries"], q["oldest_at"]) for q in queues[key]]))
    print_age(census)


@app.command()
@speaks_plainly
def peek(
    vin: Annotated[str, typer.Argument(help="The vehicle.")],
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Entries to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The entries of one queue, next one first, from Redis alone; takes nothing."""
    if not is_vin(vin):
        fail(f"VIN {vin!r} must be 1 to 64 printable ASCII characters without space, + # /", USAGE)
    length, lives = asyncio.run(_peek(settings_or_fail(), vin, count))
    if as_json:
        print_json({"vin": vin, "length": length, "entries": [life.to_json() for life in lives]})
        return
    rows = [(life.seq, life.request_id, life.data_id, life.state, life.accepted_at, life.attempts) for life in lives]
    columns = ("seq", "request_id", "data_id", "state", "accepted at", "attempts")
    out.print(table(f"{vin}: {len(lives)} of {length} entries", columns, rows) if rows else f"{vin}: nothing is pending")


async def _top(settings: Settings, count: int, fresh: bool) -> tuple[Census, dict[str, list[dict[str, Any]]]]:
    async with connect(settings.redis) as redis:
        census = await census_of(settings, redis, fresh=fresh)
        longest = await _look_again(redis, [vin for vin, _ in census.longest])
        oldest = await _look_again(redis, [vin for vin, _ in census.oldest])
    longest.sort(key=lambda queue: -queue["entries"])
    oldest.sort(key=lambda queue: queue["oldest_at"])
    return census, {"longest": longest[:count], "oldest": oldest[:count]}


async def _look_again(redis: Redis, vins: list[str]) -> list[dict[str, Any]]:
    """The same queues as they are now; those that are empty by now are left out."""
    pipe = redis.pipeline(transaction=False)
    for vin in vins:
        pipe.zcard(keys.pending(vin))
        pipe.zrange(keys.pending(vin), 0, 0)
    replies = await pipe.execute() if vins else []
    found = zip(vins, replies[::2], replies[1::2], strict=True)
    return [{"vin": vin, "entries": n, "oldest_at": datetime_of(int(head[0]))} for vin, n, head in found if head]


async def _peek(settings: Settings, vin: str, count: int) -> tuple[int, list[Life]]:
    async with connect(settings.redis) as redis:
        pipe = redis.pipeline(transaction=False)
        for key in (keys.pending(vin), keys.parked(vin)):
            pipe.zcard(key)
            pipe.zrange(key, 0, count - 1)
        pipe.hgetall(keys.inflight(vin))
        pipe.hgetall(keys.attempts(vin))
        pending_count, pending, parked_count, parked, inflight, attempts = await pipe.execute()
        seqs = sorted([*map(int, pending), *map(int, parked)])[:count]
        for seq in seqs:
            pipe.hmget(keys.trigger(seq), ["request_id", "data_id"])
        triggers = await pipe.execute() if seqs else []
    aside = set(map(int, parked))
    lives = []
    for seq, (request_id, data_id) in zip(seqs, triggers, strict=True):
        tries = int(attempts.get(str(seq).encode(), 0))
        life = Life(vin, seq, (request_id or b"").decode(), (data_id or b"").decode(), attempts=tries)
        lives.append(_standing(life, inflight, aside))
    return pending_count + parked_count, lives


def _standing(life: Life, inflight: dict[bytes, bytes], parked: set[int]) -> Life:
    if int(inflight.get(b"seq", 0)) == life.seq:
        dispatched_at = instant_of(int(inflight[b"published_at"]))
        return replace(life, state=State.IN_FLIGHT, dispatched_at=dispatched_at, attempts=int(inflight[b"attempts"]))
    return replace(life, state=State.PARKED) if life.seq in parked else life
