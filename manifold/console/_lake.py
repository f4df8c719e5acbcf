"""`manifold ingest`, `populate`, `rebuild`, `report`: the pipelines, without Airflow."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from manifold.archive.segment import Interval
from manifold.console._job import SPARK_START_NOTE, run_job
from manifold.console._output import FAILED, USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.lake.reports import INDEX, State, kept_runs, open_reports

Flush = Annotated[bool, typer.Option("--flush/--no-flush", help="First ask the recorder to close its open segments.")]
FORMATS = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"]
EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)  # before any segment
From = Annotated[
    datetime | None, typer.Option("--from", formats=FORMATS, help="Only segments that began then or later.", show_default=False)
]
To = Annotated[
    datetime | None, typer.Option("--to", formats=FORMATS, help="Only segments that began before.", show_default=False)
]
ReportOf = Annotated[
    str, typer.Option("--run-id", metavar="RUN", help="Show this run's, whatever its state.", show_default=False)
]
EveryRun = Annotated[
    bool, typer.Option("--all", help="List the runs whose reports are kept, the newest first, with their states.")
]


@handle_errors
def ingest(flush: Flush = True, from_: From = None, to: To = None, as_json: AsJson = False) -> None:
    """Ingest what is new in the archive, or began between two instants, into the lake; return when it is published.

    Instants are ISO 8601; without an offset they are UTC.
    """
    settings = settings_or_fail()
    interval = _interval(from_, to)
    from pipelines.ingest.run_all import run_all  # importing Spark takes a second

    result = run_job(
        settings,
        f"ingesting{SPARK_START_NOTE}",
        lambda: run_all(settings, interval=interval, flush_first=flush, with_populate=False),
        quiet=as_json,
    )
    ingested = result.ingested
    rows: list[tuple[str, object]] = [("segments", ingested.segments)]
    rows += [(f"messages of {stream}", count) for stream, count in ingested.read.items()]
    rows += [(f"rows into {name}", count) for name, count in ingested.written.items()]
    rows += [("refused", ingested.refused), ("warnings", result.warnings), ("report", result.report)]
    title = f"run {result.run_id} is published" if ingested.segments else "nothing was left to ingest"
    _print_result(result, as_json, title, rows)


@handle_errors
def populate(as_json: AsJson = False) -> None:
    """Offer new pending entries of the lake to the queues; those that the recorder has queued itself are left out."""
    settings = settings_or_fail()
    from pipelines.stages.ingest import populate_queues

    result = run_job(settings, f"populating the queues{SPARK_START_NOTE}", lambda: populate_queues(settings), quiet=as_json)
    if result.problem:
        fail(result.problem)
    _print_result(result, as_json, "the queues are populated", _population_rows(result))


@handle_errors
def rebuild(flush: Flush = True, as_json: AsJson = False) -> None:
    """Ingest everything recorded, then fill the queues with everything pending. Safe on loaded queues."""
    settings = settings_or_fail()
    from pipelines.ingest.run_all import rebuild as run

    result = run_job(
        settings, f"rebuilding the queues{SPARK_START_NOTE}", lambda: run(settings, flush_first=flush), quiet=as_json
    )
    populated = result.populated
    assert populated is not None  # a rebuild populates
    if populated.problem:
        fail(populated.problem)
    rows: list[tuple[str, object]] = [("segments ingested", result.ingested.segments), *_population_rows(populated)]
    _print_result(result, as_json, "the queues are loaded", rows)


@handle_errors
def report(run_id: ReportOf = "", every: EveryRun = False, as_json: AsJson = False) -> None:
    """Show the quality report of the newest published run; exit status 1 if a newer run is held back."""
    settings = settings_or_fail()
    reports = open_reports(settings)
    runs, index = kept_runs(reports), reports.address(INDEX)
    if not runs:
        fail(f"there is no report in {reports.address('')}; run manifold ingest")
    if every:
        _show_all(runs, index, as_json)
        return
    if run_id:
        shown = next((run for run in runs if run["run_id"] == run_id), None)
        if shown is None:
            fail(f"--run-id {run_id!r}: no report of such a run is kept; manifold report --all lists those that are", USAGE)
        newer = []  # with --run-id, newer runs are not listed, and do not affect the exit status
    else:
        shown = next((run for run in runs if run["state"] == State.PUBLISHED), runs[0])  # runs[0] is the newest
        newer = runs[: runs.index(shown)]
    if as_json:
        newer_states = [{"run_id": run["run_id"], "state": run["state"]} for run in newer]
        print_json(shown | {"index": index, "newer": newer_states})
    else:
        _show_report(shown, newer, index)
    if any(run["state"] == State.HELD_BACK for run in (shown, *newer)):
        raise typer.Exit(FAILED)


def _show_report(run: dict[str, Any], newer: list[dict[str, Any]], index: str) -> None:
    """Print the findings of a run, the states of the newer runs, and the address of the index of all runs."""
    out.print(f"run {run['run_id']}: {run['state']}, judged at {run['as_of']}")
    rows = [
        (finding["severity"], finding["table"], finding["says"], f"{finding['rows']} of {finding['of']}")
        for finding in run["failures"] + run["warnings"]
    ]
    if rows:
        out.print(table("", ("severity", "table", "should be true", "rows that break it"), rows))
    out.print(f"report: {run['report']}")
    for other in newer:
        out.print(f"newer: run {other['run_id']}, {other['state']}; manifold report --run-id {other['run_id']}")
    out.print(f"all runs: manifold report --all, or {index}")


def _show_all(runs: list[dict[str, Any]], index: str, as_json: bool) -> None:
    if as_json:
        print_json({"runs": runs, "index": index})
        return
    rows = [(run["run_id"], run["state"], len(run["failures"]), len(run["warnings"]), run["as_of"]) for run in runs]
    out.print(table(f"reports: {index}", ("run", "state", "errors", "warnings", "judged at"), rows))


def _interval(start: datetime | None, end: datetime | None) -> Interval | None:
    """The interval of --from and --to, by default from the first segment until now; None if neither option is given."""
    if start is None and end is None:
        return None
    start_utc = EARLIEST if start is None else _as_utc(start)
    end_utc = datetime.now(UTC) if end is None else _as_utc(end)
    try:
        return Interval(start_utc, end_utc)
    except ValueError as exc:
        fail(f"--from and --to: {exc}", USAGE)


def _as_utc(instant: datetime) -> datetime:
    """The instant; without an offset, it is in UTC."""
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _population_rows(result: Any) -> list[tuple[str, object]]:
    names = ("vehicles", "offered", "queued", "superseded", "forgotten")
    return [(name, getattr(result, name)) for name in names]


def _print_result(result: Any, as_json: bool, title: str, rows: list[tuple[str, object]]) -> None:
    if as_json:
        print_json(json.loads(result.to_json()))
    else:
        out.print(table(title, ("what", "how many"), rows))
