"""`manifold vin` and `manifold batch`: what happened to a vehicle, and to a batch."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from redis import Redis

from adapters.lake import open_catalog
from console._lives import Life, Lives
from console._output import AsJson, fail, out, print_json, settings_or_fail, speaks_plainly, table
from contracts.names import is_id, is_vin
from contracts.settings import Settings

vin_app = typer.Typer(help="What happened to a vehicle.", no_args_is_help=True)
batch_app = typer.Typer(help="What happened to a batch.", no_args_is_help=True)


@contextmanager
def lives_of(settings: Settings) -> Iterator[Lives]:
    """The lives of entries, with a Redis client for as long as the block runs."""
    with Redis.from_url(settings.redis) as redis:
        yield Lives(settings, open_catalog(settings), redis)


@vin_app.command("show")
@speaks_plainly
def vin_show(vin: Annotated[str, typer.Argument(help="The vehicle.")], as_json: AsJson = False) -> None:
    """Every entry of a vehicle, oldest first: where it stands and when what happened to it."""
    settings = settings_or_fail()
    if not is_vin(vin):
        fail(f"VIN {vin!r} must be 1 to 64 printable ASCII characters without space, + # /")
    with lives_of(settings) as lives:
        entries = lives.of_vin(vin)
    if as_json:
        print_json({"vin": vin, "entries": [life.to_json() for life in entries]})
        return
    if not entries:
        out.print(f"{vin}: nothing was ever sent to it")
        return
    columns = ("seq", "request_id", "data_id", "state", "accepted at", "dispatched at", "acknowledged at", "attempts")
    out.print(table(f"{vin}, {len(entries)} entries", columns, [_row(life) for life in entries]))


def _row(life: Life) -> tuple[object, ...]:
    when = (life.accepted_at, life.dispatched_at, life.acknowledged_at)
    return (life.seq, life.request_id, life.data_id, life.state, *when, life.attempts)


@batch_app.command("show")
@speaks_plainly
def batch_show(request_id: Annotated[str, typer.Argument(help="The triggers' request_id.")], as_json: AsJson = False) -> None:
    """Every trigger with this request_id: how many vehicles, and where their entries stand."""
    settings = settings_or_fail()
    if not is_id(request_id):
        fail(f"request_id {request_id!r} must be 1 to 128 printable ASCII characters without space, + # /")
    with lives_of(settings) as lives:
        entries = lives.of_batch(request_id)
    batches: dict[int, list[Life]] = {}
    for life in entries:
        batches.setdefault(life.seq, []).append(life)
    summaries = [_summary(seq, some) for seq, some in batches.items()]
    if as_json:
        print_json({"request_id": request_id, "batches": summaries})
        return
    if not summaries:
        out.print(f"{request_id}: no trigger had this request_id")
        return
    rows = [(s["seq"], s["data_id"], s["accepted_at"], s["vehicles"], _counted(s["states"])) for s in summaries]
    out.print(table(request_id, ("seq", "data_id", "accepted at", "vehicles", "states"), rows))


def _summary(seq: int, lives: list[Life]) -> dict[str, object]:
    states = Counter(str(life.state) for life in lives)
    first = lives[0]
    return {
        "seq": seq,
        "data_id": first.data_id,
        "accepted_at": first.accepted_at,
        "vehicles": len(lives),
        "states": dict(states),
    }


def _counted(states: object) -> str:
    assert isinstance(states, dict)
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
