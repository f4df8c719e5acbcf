"""`manifold vin` and `manifold batch`: shows the history of a vehicle or a batch, erases a vehicle, cancels a batch."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from manifold.console._erasing import WAIT_S, Wait, Why, Yes, erase
from manifold.console._history import history_of, redis_of
from manifold.console._output import (
    USAGE,
    AsJson,
    command_line,
    fail,
    handle_errors,
    out,
    print_json,
    require_vin,
    settings_or_fail,
    spinner,
    table,
)
from manifold.contracts.names import is_id
from manifold.contracts.seq import MAX_SEQ, datetime_of
from manifold.history import OPEN, BatchHistory, BatchPage, Bounds, EntryHistory, VehiclePage
from manifold.history.from_service import batch_page, vehicle_page
from manifold.settings import Settings

if TYPE_CHECKING:  # loaded by the command, because PyIceberg is slow to import
    from manifold.console._cancel import Progress

vin_app = typer.Typer(help="Show what happened to a vehicle, or erase it.", no_args_is_help=True)
batch_app = typer.Typer(help="Show what happened to a batch, or cancel it.", no_args_is_help=True)
NO_LIMIT = 1_000_000
PAGE_SIZE = 100  # entries; the page size of the API
VEHICLE_BOUNDS = Bounds(rows=50_000_000)  # many rows are scanned, because only few of a file's rows are about a given vehicle
DEFAULT_BOUNDS = Bounds()
INTERRUPTED = 130  # the exit status that shells give a process that SIGINT ended
MAX_CORRUPT_KEYS = 20  # keys named in an error message
CORRUPT_KEYS_REMEDY = "delete these keys, run `manifold rebuild`, and cancel again"
Vin = Annotated[str, typer.Argument(help="The vehicle.")]
RequestId = Annotated[str, typer.Argument(help="The triggers' request_id.")]
Before = Annotated[int | None, typer.Option(min=0, max=MAX_SEQ, help="Only triggers before this seq.", show_default="the newest")]
BeforeEntry = Annotated[
    int | None, typer.Option("--before", min=0, max=MAX_SEQ, help="Only entries before this seq.", show_default="the newest")
]
PageLimit = Annotated[int, typer.Option("--limit", min=1, max=20_000, help="At most so many entries, the newest.")]


@vin_app.command("show")
@handle_errors
def vin_show(vin: Vin, limit: PageLimit = PAGE_SIZE, before: BeforeEntry = None, as_json: AsJson = False) -> None:
    """The newest entries of a vehicle, oldest first, with state and event times."""
    settings = _settings_for(vin)
    page = _vehicle_page(settings, vin, _page_bounds(limit, before))
    _print_page(vin, page.entries, page.before, as_json, if_empty="nothing was ever sent to it")


@vin_app.command("pending")
@handle_errors
def vin_pending(vin: Vin, as_json: AsJson = False) -> None:
    """Pending, parked and in-flight entries, oldest first, from the queues alone."""
    settings = _settings_for(vin)
    from manifold.history.from_queues import waiting_of

    with redis_of(settings) as redis:
        _, entries = waiting_of(redis, vin, NO_LIMIT)
    if as_json:
        print_json(_entries_json(vin, entries))
    else:
        _print_entries(vin, entries, if_empty="nothing is pending")


@vin_app.command("history")
@handle_errors
def vin_history(vin: Vin, limit: PageLimit = PAGE_SIZE, before: BeforeEntry = None, as_json: AsJson = False) -> None:
    """Those of the newest entries that have ended, oldest first, with outcome and event times."""
    settings = _settings_for(vin)
    page = _vehicle_page(settings, vin, _page_bounds(limit, before))
    ended = [entry for entry in page.entries if not entry.is_open]
    _print_page(vin, ended, page.before, as_json, if_empty="nothing has ended yet")


@vin_app.command("erase")
@handle_errors
def vin_erase(vin: Vin, why: Why, yes: Yes = False, wait: Wait = WAIT_S, as_json: AsJson = False) -> None:
    """Erase a vehicle from queues, archive and lake, and search every file for it; exit status 1 if it is found."""
    erase(_settings_for(vin), vin, why, yes=yes, wait_s=wait, as_json=as_json)


@batch_app.command("show")
@handle_errors
def batch_show(
    request_id: RequestId,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Triggers of one page.")] = DEFAULT_BOUNDS.limit,
    before: Before = None,
    entries: Annotated[
        int, typer.Option(min=0, help="Entries that are looked at one by one, of the newest triggers first.")
    ] = DEFAULT_BOUNDS.entries,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the lake that are looked at for one page.")] = DEFAULT_BOUNDS.rows,
    as_json: AsJson = False,
) -> None:
    """The newest triggers with this request_id, oldest first: how many vehicles each has, and the states of their entries."""
    settings = _settings_for_request(request_id)
    bounds = Bounds(limit=limit, entries=entries, rows=rows, before=MAX_SEQ if before is None else before)
    page = batch_page(settings, request_id, bounds)
    if page is None:  # the API does not answer
        with history_of(settings) as history:
            page = history.batches(request_id, bounds)
    if as_json:
        print_json({"request_id": request_id, "batches": [_summary(batch) for batch in page.batches], "before": page.before})
    else:
        _print_batches(request_id, page, bounds)


def _print_batches(request_id: str, page: BatchPage, bounds: Bounds) -> None:
    """Print a page of triggers, and the command for the next page, with the same bounds, if there is one."""
    next_before = page.before  # None: there are no older triggers
    if page.batches:
        rows = [
            (batch.seq, batch.data_id, batch.accepted_at, batch.vehicles, _format_counts(batch.states)) for batch in page.batches
        ]
        out.print(table(request_id, ("seq", "data_id", "accepted at", "vehicles", "states"), rows))
    elif next_before is None:  # otherwise older triggers remain, and the last lines say how to look at them
        limited_to = "" if bounds.before == MAX_SEQ else f" before {bounds.before}"
        out.print(f"{request_id}: no trigger had this request_id{limited_to}")
    if any(OPEN in batch.states for batch in page.batches):
        out.print(f"{OPEN}: nothing in the lake says that they ended; --entries looks at more of them one by one")
    if next_before is not None:
        label = "older triggers" if page.batches else f"none since {datetime_of(next_before):%Y-%m-%d %H:%M:%SZ}; what is older"
        sizes = {name: getattr(bounds, name) for name in ("limit", "entries", "rows")}
        changed_sizes = {name: size for name, size in sizes.items() if size != getattr(DEFAULT_BOUNDS, name)}
        out.print(f"{label}: {command_line('batch', 'show', request_id, before=next_before, **changed_sizes)}")


@batch_app.command("cancel")
@handle_errors
def batch_cancel(
    request_id: RequestId,
    vins: Annotated[list[str] | None, typer.Option("--vin", help="Only of this vehicle; may be repeated.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many triggers, the newest first.", show_default="all of the retention")
    ] = None,
    before: Before = None,
    as_json: AsJson = False,
) -> None:
    """Cancel entries that have not ended, queued or not. An entry in flight ends cancelled unless it is acknowledged."""
    settings = _settings_for_request(request_id)
    from manifold.console._cancel import Progress, cancel

    latest = Progress(before=before)  # also for the message after an interruption
    try:
        with redis_of(settings) as redis, spinner("looking up", quiet=as_json or not sys.stderr.isatty()) as set_status:

            def show_progress(progress: Progress) -> None:
                nonlocal latest
                latest = progress
                set_status(f"{progress.triggers} triggers, {_format_counts(progress.entries)}")

            start = MAX_SEQ if before is None else before
            latest = cancel(
                settings, redis, request_id, set(vins or ()), before=start, limit=limit, report_progress=show_progress
            )
    except KeyboardInterrupt:
        command = _command_to_continue(request_id, vins, before, limit, latest)
        fail(f"interrupted after {latest.triggers} triggers; to continue: {command}", INTERRUPTED)
    if as_json:
        counts = {"triggers": latest.triggers, "entries": dict(sorted(latest.entries.items())), "before": latest.before}
        print_json({"request_id": request_id, **counts})
    else:
        out.print(f"{request_id}: {_format_counts(latest.entries)}")
        if latest.before is not None:
            command = command_line("batch", "cancel", request_id, vin=vins, before=latest.before, limit=limit)
            out.print(f"older triggers are left: {command}")
    if latest.skipped:
        corrupt_keys = "; ".join(latest.skipped[:MAX_CORRUPT_KEYS])
        if len(latest.skipped) > MAX_CORRUPT_KEYS:
            corrupt_keys += "; …"
        fail(f"vehicles were left out, because these keys in Redis hold something else: {corrupt_keys}; {CORRUPT_KEYS_REMEDY}")


def _command_to_continue(
    request_id: str, vins: list[str] | None, before: int | None, limit: int | None, progress: "Progress"
) -> str:
    """Return the command that continues an interrupted `batch cancel` with these options.

    With --vin, entries are cancelled only after all triggers were read, so the command starts from the beginning. It also does so
    if no trigger was read yet, or if all of them (or `limit`) were read.
    """
    can_resume = not vins and progress.before not in (None, MAX_SEQ) and progress.triggers != limit
    if can_resume:
        before = progress.before
        limit = None if limit is None else limit - progress.triggers
    return command_line("batch", "cancel", request_id, vin=vins, before=before, limit=limit)


def _settings_for(vin: str) -> Settings:
    """Return the settings; exit with an error if this cannot be a VIN."""
    require_vin(vin)
    return settings_or_fail()


def _settings_for_request(request_id: str) -> Settings:
    """Return the settings; exit with an error if this cannot be a request_id."""
    if not is_id(request_id):
        fail(f"request_id {request_id!r} must be 1 to 128 printable ASCII characters without space, + # /", USAGE)
    return settings_or_fail()


def _page_bounds(limit: int, before: int | None) -> Bounds:
    return replace(VEHICLE_BOUNDS, limit=limit, before=MAX_SEQ if before is None else before)


def _vehicle_page(settings: Settings, vin: str, bounds: Bounds) -> VehiclePage:
    """Return a page of a vehicle's history: from the API, or read in this process if the API does not answer."""
    page = vehicle_page(settings, vin, bounds)
    if page is None:
        with history_of(settings) as history:
            page = history.vin_page(vin, bounds)
    return page


def _print_page(vin: str, entries: list[EntryHistory], next_before: int | None, as_json: bool, *, if_empty: str) -> None:
    """Print a page of a vehicle's entries. `next_before` is the value of --before for the next page; None if there is none."""
    if as_json:
        print_json(_entries_json(vin, entries) | {"before": next_before})
    elif next_before is None:
        _print_entries(vin, entries, if_empty=if_empty)
    else:
        _print_entries(vin, entries, if_empty="nothing on this page", hint=f"; older ones: --before {next_before}")


def _entries_json(vin: str, entries: list[EntryHistory]) -> dict[str, object]:
    return {"vin": vin, "entries": [entry.to_json() for entry in entries]}


def _print_entries(vin: str, entries: list[EntryHistory], *, if_empty: str, hint: str = "") -> None:
    """Print a table of a vehicle's entries, with the hint in its title; without entries, the text `if_empty` and the hint."""
    if not entries:
        out.print(f"{vin}: {if_empty}{hint}")
        return
    columns = ("seq", "request_id", "data_id", "state", "accepted at", "dispatched at", "acknowledged at", "attempts")
    count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
    out.print(table(f"{vin}, {count}{hint}", columns, [_row(entry) for entry in entries]))


def _row(entry: EntryHistory) -> tuple[object, ...]:
    times = (entry.accepted_at, entry.dispatched_at, entry.acknowledged_at)
    return (entry.seq, entry.request_id, entry.data_id, entry.state, *times, entry.attempts)


def _summary(batch: BatchHistory) -> dict[str, object]:
    return {
        "seq": batch.seq,
        "data_id": batch.data_id,
        "accepted_at": batch.accepted_at,
        "vehicles": batch.vehicles,
        "states": dict(batch.states),
    }


def _format_counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
