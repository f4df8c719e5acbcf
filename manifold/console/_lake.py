"""`manifold ingest`, `populate`, `rebuild`, `report`: the pipelines, without Airflow."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from manifold.archive.segment import Interval
from manifold.console._output import FAILED, USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table, working
from manifold.lake.reports import INDEX, kept_runs, open_reports

Flush = Annotated[bool, typer.Option("--flush/--no-flush", help="First ask the recorder to close its open segments.")]
FORMATS = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"]
From = Annotated[
    datetime | None, typer.Option("--from", formats=FORMATS, help="Only segments that began then or later.", show_default=False)
]
To = Annotated[
    datetime | None, typer.Option("--to", formats=FORMATS, help="Only segments that began before.", show_default=False)
]


@handle_errors
def ingest(flush: Flush = True, from_: From = None, to: To = None, as_json: AsJson = False) -> None:
    """Take everything new of the archive (or what began between two instants) into the lake; return when it is published.

    Instants are ISO 8601; without an offset they are UTC.
    """
    settings = settings_or_fail()
    interval = _interval(from_, to)
    from pipelines.ingest.run_all import run_all  # Spark's library takes a second that other commands need not wait

    result = _run("ingesting", as_json, lambda: run_all(settings, interval=interval, flush_first=flush, with_populate=False))
    ingested = result.ingested
    rows = [("segments", ingested.segments), *((f"messages of {k}", v) for k, v in ingested.read.items())]
    rows += [(f"rows into {k}", v) for k, v in ingested.written.items()] + [("refused", ingested.refused)]
    _show(result, as_json, f"run {result.run_id} is published", [*rows, ("warnings", result.warnings), ("report", result.report)])


@handle_errors
def populate(as_json: AsJson = False) -> None:
    """Offer to the queues what is pending in the lake and was not handed over."""
    settings = settings_or_fail()
    from pipelines.stages.populate import populate_queues

    result = _run("populating the queues", as_json, lambda: populate_queues(settings))
    if result.problem:
        fail(result.problem)
    _show(result, as_json, "the queues are populated", _populated(result))


@handle_errors
def rebuild(flush: Flush = True, as_json: AsJson = False) -> None:
    """Take in everything recorded, then fill the queues with everything pending. Safe on loaded queues."""
    settings = settings_or_fail()
    from pipelines.ingest.run_all import rebuild as run

    result = _run("rebuilding the queues", as_json, lambda: run(settings, flush_first=flush))
    if result.populated.problem:
        fail(result.populated.problem)
    _show(
        result, as_json, "the queues are loaded", [("segments taken in", result.ingested.segments), *_populated(result.populated)]
    )


@handle_errors
def report(as_json: AsJson = False) -> None:
    """The newest quality report: its verdict and its address."""
    settings = settings_or_fail()
    reports = open_reports(settings)
    runs = kept_runs(reports)
    if not runs:
        fail(f"there is no report in {reports.address('')}; run manifold ingest")
    newest, index = runs[0], reports.address(INDEX)
    if as_json:
        print_json(newest | {"index": index})
    else:
        findings = [
            (f["severity"], f["table"], f["says"], f"{f['rows']} of {f['of']}") for f in newest["failures"] + newest["warnings"]
        ]
        out.print(f"run {newest['run_id']} {'passed' if newest['passed'] else 'FAILED'}, judged at {newest['as_of']}")
        if findings:
            out.print(table("", ("severity", "table", "should be true", "rows that break it"), findings))
        out.print(f"report: {newest['report']}\nall runs: {index}")
    if not newest["passed"]:
        raise typer.Exit(FAILED)


def _interval(start: datetime | None, end: datetime | None) -> Interval | None:
    if start is None and end is None:
        return None
    first, last = (at if at is None or at.tzinfo else at.replace(tzinfo=UTC) for at in (start, end))
    try:
        return Interval(first or datetime(2020, 1, 1, tzinfo=UTC), last or datetime.now(UTC))
    except ValueError as exc:
        fail(f"--from and --to: {exc}", USAGE)


def _run(what: str, quiet: bool, work: Callable[[], Any]) -> Any:
    with working(f"{what} (Spark starts first)", quiet=quiet or not sys.stderr.isatty()):
        return work()


def _populated(result: Any) -> list[tuple[str, object]]:
    names = ("vehicles", "offered", "queued", "superseded", "forgotten")
    return [(name, getattr(result, name)) for name in names]


def _show(result: Any, as_json: bool, title: str, rows: list[tuple[str, object]]) -> None:
    if as_json:
        print_json(json.loads(result.to_json()))
    else:
        out.print(table(title, ("what", "how many"), rows))
