"""`manifold vin` and `manifold batch`: what happened to a vehicle, and to a batch; and taking a batch back."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from console._light import leave_pandas_out
from console._output import USAGE, AsJson, fail, out, print_json, settings_or_fail, speaks_plainly, table
from contracts.names import is_id, is_vin
from contracts.settings import Settings

if TYPE_CHECKING:
    from redis import Redis

    from console._lives import Lives
    from contracts.lives import Life

vin_app = typer.Typer(help="What happened to a vehicle.", no_args_is_help=True)
batch_app = typer.Typer(help="What happened to a batch, and taking it back.", no_args_is_help=True)
EVERYTHING = 1_000_000
Vin = Annotated[str, typer.Argument(help="The vehicle.")]
RequestId = Annotated[str, typer.Argument(help="The triggers' request_id.")]


@contextmanager
def redis_of(settings: Settings) -> "Iterator[Redis]":
    """A blocking client for as long as the block runs."""
    from adapters.redis import connect  # here, and in the commands below: each command loads only what it needs

    with connect(settings.redis) as redis:
        yield redis


@vin_app.command("show")
@speaks_plainly
def vin_show(vin: Vin, as_json: AsJson = False) -> None:
    """Every entry of a vehicle, oldest first: where it stands and when what happened to it."""
    settings = _checked(vin)
    with redis_of(settings) as redis:
        entries = _lives(settings, redis).of_vin(vin)
    _print_lives(vin, entries, as_json, nothing="nothing was ever sent to it")


@vin_app.command("pending")
@speaks_plainly
def vin_pending(vin: Vin, as_json: AsJson = False) -> None:
    """What is pending, parked or in flight, oldest first: from the queues alone."""
    settings = _checked(vin)
    from console._waiting import waiting_of

    _, entries = asyncio.run(waiting_of(settings, vin, EVERYTHING))
    _print_lives(vin, entries, as_json, nothing="nothing is pending")


@vin_app.command("history")
@speaks_plainly
def vin_history(vin: Vin, as_json: AsJson = False) -> None:
    """What has ended, oldest first: how, and when what happened to it."""
    settings = _checked(vin)
    with redis_of(settings) as redis:
        entries = [life for life in _lives(settings, redis).of_vin(vin) if not life.is_open]
    _print_lives(vin, entries, as_json, nothing="nothing has ended yet")


@batch_app.command("show")
@speaks_plainly
def batch_show(request_id: RequestId, as_json: AsJson = False) -> None:
    """Every trigger with this request_id: how many vehicles, and where their entries stand."""
    settings = _checked_request(request_id)
    with redis_of(settings) as redis:
        entries = _lives(settings, redis).of_batch(request_id)
    batches: dict[int, list[Life]] = {}
    for life in entries:
        batches.setdefault(life.seq, []).append(life)
    if as_json:
        print_json({"request_id": request_id, "batches": [_summary(some) for some in batches.values()]})
        return
    if not batches:
        out.print(f"{request_id}: no trigger had this request_id")
        return
    rows = [(seq, some[0].data_id, some[0].accepted_at, len(some), _counted(_states(some))) for seq, some in batches.items()]
    out.print(table(request_id, ("seq", "data_id", "accepted at", "vehicles", "states"), rows))


@batch_app.command("cancel")
@speaks_plainly
def batch_cancel(
    request_id: RequestId,
    vins: Annotated[list[str] | None, typer.Option("--vin", help="Only of this vehicle; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take back what has not ended, queued or not. What is in flight ends cancelled unless it is acknowledged."""
    settings = _checked_request(request_id)
    leave_pandas_out()
    from console._cancel import cancel

    with redis_of(settings) as redis:
        standing = cancel(settings, redis, request_id, set(vins or ()))
    if as_json:
        print_json({"request_id": request_id, "entries": dict(sorted(standing.items()))})
    else:
        out.print(f"{request_id}: {_counted(standing)}")


def _lives(settings: Settings, redis: "Redis") -> "Lives":
    leave_pandas_out()
    from console._lives import Lives

    return Lives(settings, redis)


def _checked(vin: str) -> Settings:
    if not is_vin(vin):
        fail(f"VIN {vin!r} must be 1 to 64 printable ASCII characters without space, + # /", USAGE)
    return settings_or_fail()


def _checked_request(request_id: str) -> Settings:
    if not is_id(request_id):
        fail(f"request_id {request_id!r} must be 1 to 128 printable ASCII characters without space, + # /", USAGE)
    return settings_or_fail()


def _print_lives(vin: str, lives: "list[Life]", as_json: bool, *, nothing: str) -> None:
    if as_json:
        print_json({"vin": vin, "entries": [life.to_json() for life in lives]})
        return
    if not lives:
        out.print(f"{vin}: {nothing}")
        return
    columns = ("seq", "request_id", "data_id", "state", "accepted at", "dispatched at", "acknowledged at", "attempts")
    out.print(table(f"{vin}, {len(lives)} entries", columns, [_row(life) for life in lives]))


def _row(life: "Life") -> tuple[object, ...]:
    when = (life.accepted_at, life.dispatched_at, life.acknowledged_at)
    return (life.seq, life.request_id, life.data_id, life.state, *when, life.attempts)


def _summary(lives: "list[Life]") -> dict[str, object]:
    first = lives[0]
    return {
        "seq": first.seq,
        "data_id": first.data_id,
        "accepted_at": first.accepted_at,
        "vehicles": len(lives),
        "states": dict(_states(lives)),
    }


def _states(lives: "Iterable[Life]") -> Counter[str]:
    return Counter(str(life.state) for life in lives)


def _counted(states: Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
