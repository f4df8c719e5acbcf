"""`manifold queue`: the longest queues, the queues with the oldest entries, and the entries of one queue."""

from typing import Annotated, Any

import typer
from redis.asyncio import Redis

from manifold.console._history import redis_of
from manifold.console._output import AsJson, handle_errors, out, print_json, require_vin, settings_or_fail, table
from manifold.console._queue_stats import Fresh, HowMany, TopQueues
from manifold.contracts import keys
from manifold.contracts.seq import datetime_of
from manifold.history.from_queues import waiting_of

app = typer.Typer(help="Show the longest queues, the oldest entries, and what one queue holds.", no_args_is_help=True)


@app.command()
@handle_errors
def top(count: HowMany = 10, fresh: Fresh = False, as_json: AsJson = False) -> None:
    """The longest queues, and those with the oldest entries: named by the last queue statistics, with their state now."""
    queues = TopQueues(
        named=lambda stats: (stats.longest, stats.oldest),
        read=_read_states,
        length="entries",
        title="longest queues",
        columns=("vehicle", "entries", "oldest accepted at"),
    )
    queues.show(count, fresh=fresh, as_json=as_json)


@app.command()
@handle_errors
def peek(
    vin: Annotated[str, typer.Argument(help="The vehicle.")],
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Entries to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The entries of one queue, from Redis alone, the next to be sent first. The queue is not changed."""
    require_vin(vin)
    with redis_of(settings_or_fail()) as redis:
        length, entries = waiting_of(redis, vin, count)
    if as_json:
        print_json({"vin": vin, "length": length, "entries": [entry.to_json() for entry in entries]})
        return
    rows = [(entry.seq, entry.request_id, entry.data_id, entry.state, entry.accepted_at, entry.attempts) for entry in entries]
    columns = ("seq", "request_id", "data_id", "state", "accepted at", "attempts")
    out.print(table(f"{vin}: {len(entries)} of {length} entries", columns, rows) if rows else f"{vin}: nothing is pending")


async def _read_states(redis: Redis, vins: list[str]) -> list[dict[str, Any]]:
    """Return the current state of these queues; empty ones are omitted."""
    pipe = redis.pipeline(transaction=False)
    for vin in vins:
        pipe.zcard(keys.pending(vin))
        pipe.zrange(keys.pending(vin), 0, 0)
    results = await pipe.execute() if vins else []
    counts, oldest_entries = results[::2], results[1::2]  # two commands per vehicle
    return [
        {"vin": vin, "entries": count, "oldest_at": datetime_of(int(oldest[0]))}
        for vin, count, oldest in zip(vins, counts, oldest_entries, strict=True)
        if oldest
    ]
