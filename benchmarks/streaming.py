"""A stream's commits through a week, simulated: what they take day by day, and how large the tables' metadata is.

`python -m benchmarks.streaming [--days 1 2 3 4 5 6 7] [--measured 40] [--snapshots 1000]`: the lake is brought to the end of each
of these days, and there so many micro-batches are measured, each a segment with one trigger, half a minute apart by their clock,
through the code by which every run begins, is published, and forgets old snapshots (the setting `snapshot_max`). Rows are written
without Spark.

A day is made quickly: its first hours are a file a table, as packing and compaction leave them; its last ones have every snapshot
and every small file that the stream would have left, put there by few commits. After each hour comes the stream's own
housekeeping, and six hours before the end a compaction. So each day is measured where it costs the most: six hours after the
compaction, at the end of an hour, with all snapshots that are kept.
"""

import argparse
import logging
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, cast

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from benchmarks.machine import Row, report
from manifold.contracts.envelope import Stream, segment_path
from manifold.contracts.tables import IDS, SEGMENTS, Table
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.commits import append_rows
from manifold.lake.compat import Change
from manifold.settings import Settings
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import ATTEMPT, RESULT, RUN_ID, branch_of, create_branch, open_run, properties_of
from pipelines.ingest.ledger import ledger_of
from pipelines.ingest.publish import main_snapshots, pins_of, publish
from pipelines.ingest.run import Ingested, Run
from pipelines.maintenance.ledger_pack import pack_ledger
from pipelines.maintenance.snapshots import READ_GRACE, expire_by_count
from tests.pipelines.makers import at, seq_at
from tests.pipelines.plain import compact

EVERY_MS, AN_HOUR, ONE_DAY = 30_000, 120, 2_880  # micro-batches
AT_ONCE = 24  # snapshots of one commit
HOURS_AFTER_COMPACTION = 6  # as `compact_schedule` has it
AIM = 1.15  # the last day's against the first's
MAX_METADATA_FILES = 51


@dataclass(frozen=True, slots=True)
class Seen:
    """What a day has shown."""

    cpu_s: float  # of a micro-batch's commits, the median
    wall_s: float
    tidy_cpu_s: float  # of an hour's housekeeping
    bytes: int  # of the largest table's metadata
    snapshots: int
    manifests: int  # of `ingested_segments`
    metadata_files: int


def run(days: list[int], measured: int, snapshots: int) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        settings = Settings(home=Path(folder), snapshot_max=snapshots)
        ensure_tables(open_catalog(settings))
        fresh = _measured(settings, 0, measured, 0.0)
        print(f"new lake: {fresh}", file=sys.stderr, flush=True)
        seen = []
        for day in range(1, max(days) + 1):
            if day in days:
                seen.append(_day(settings, day, measured))
            else:  # a file a table
                _stage(settings, [_batches_of(day, measured)])
    return [*_rows_of(fresh, days, seen), *_kept(seen)]


def _rows_of(fresh: Seen, days: list[int], seen: list[Seen]) -> list[Row]:
    what = "a micro-batch's commits, CPU"
    first, last = seen[0].cpu_s, seen[-1].cpu_s
    rows = [Row(f"{what}: new lake", f"{fresh.cpu_s * 1000:.0f} ms", f"{fresh.cpu_s / first:.2f}")]
    for day, each in zip(days, seen, strict=True):
        rows.append(Row(f"{what}: end of day {day}", f"{each.cpu_s * 1000:.0f} ms", f"{each.cpu_s / first:.2f}"))
    rows[-1] = Row(rows[-1].what, rows[-1].figure, rows[-1].ratio, f"≤ {AIM}", last <= AIM * first)
    return rows


def _kept(seen: list[Seen]) -> list[Row]:
    most = max(each.metadata_files for each in seen)
    ratio = seen[-1].bytes / seen[0].bytes
    return [
        Row("the same by the clock, last day", f"{seen[-1].wall_s * 1000:.0f} ms", f"{seen[-1].wall_s / seen[0].wall_s:.2f}"),
        Row("an hour's housekeeping, CPU, last day", f"{seen[-1].tidy_cpu_s:.1f} s"),
        Row("snapshots of ingested_segments, last day", f"{seen[-1].snapshots:,}"),
        Row("largest metadata of a table, first day", f"{seen[0].bytes / (1 << 20):.2f} MiB"),
        Row("last day", f"{seen[-1].bytes / (1 << 20):.2f} MiB", f"{ratio:.2f}", f"≤ {AIM}", ratio <= AIM),
        Row("metadata files of ingested_segments", f"{most}", "", f"≤ {MAX_METADATA_FILES}", most <= MAX_METADATA_FILES),
        Row("most manifests of ingested_segments", f"{max(each.manifests for each in seen)}"),
    ]


def _batches_of(day: int, measured: int) -> range:
    """The micro-batches of a day; the new lake has had some of the first one already."""
    return range(max((day - 1) * ONE_DAY, measured), day * ONE_DAY)


def _day(settings: Settings, day: int, measured: int) -> Seen:
    """Bring the lake to the end of this day, and measure there."""
    began, end = _batches_of(day, measured).start, day * ONE_DAY
    # Hours of which every snapshot is made: those since the last compaction, and once as many as are kept.
    kept = len(open_catalog(settings).load_table(SEGMENTS.identifier).snapshots())
    hours = 1 + max(HOURS_AFTER_COMPACTION, -(-(settings.snapshot_max - kept) // AN_HOUR))
    first = max(began, end - hours * AN_HOUR)
    _stage(settings, [range(began, first)])
    tidy_s = []
    for start in range(first, end - AN_HOUR, AN_HOUR):
        _stage(settings, [range(n, n + 1) for n in range(start, start + AN_HOUR)])
        if end - start == (HOURS_AFTER_COMPACTION + 1) * AN_HOUR:
            compact(open_catalog(settings), IDS)
        tidied = time.process_time()
        _tidy(settings, start + AN_HOUR)
        tidy_s.append(time.process_time() - tidied)
    _stage(settings, [range(n, n + 1) for n in range(end - AN_HOUR, end - measured)])
    seen = _measured(settings, end - measured, measured, median(tidy_s))
    print(f"day {day}: {seen}", file=sys.stderr, flush=True)
    return seen


def _stage(settings: Settings, batches: list[range]) -> None:
    """A snapshot a table for each of these ranges of micro-batches, with what the runs would say; few commits."""
    for first in range(0, len(batches), AT_ONCE):
        some = [numbers for numbers in batches[first : first + AT_ONCE] if numbers]
        entries = _stage_table(settings, IDS, some, {})
        _stage_table(settings, SEGMENTS, some, {run_id: _said(run_id, entries[run_id]) for run_id in entries})


def _stage_table(settings: Settings, table: Table, batches: list[range], said: dict[str, dict[str, str]]) -> dict[str, int]:
    """The snapshots, by run id; `said` is what they say besides."""
    rows_of = _segment if table is SEGMENTS else _entry
    with Change(open_catalog(settings).load_table(table.identifier)) as change:
        for numbers in batches:
            run_id = _run_id(numbers[0])
            rows = pa.Table.from_pylist([rows_of(number) for number in numbers], schema=table.arrow_schema)
            properties = {RUN_ID: run_id, ATTEMPT: f"{numbers[0]:016x}"} | said.get(run_id, {})
            change.append(rows, snapshot_properties=properties)
    made = open_catalog(settings).load_table(table.identifier).snapshots()
    runs = {_run_id(numbers[0]) for numbers in batches}
    named = ((properties_of(snapshot).get(RUN_ID, ""), snapshot.snapshot_id) for snapshot in made)
    return {run_id: snapshot_id for run_id, snapshot_id in named if run_id in runs}


def _said(run_id: str, entries: int) -> dict[str, str]:
    written = {IDS.name: 1, SEGMENTS.name: 1}
    told = Ingested(run_id, 1, {"trigger": 1, "data": 0, "outcome": 0}, 0, written)
    return pins_of({IDS.name: entries}) | {RESULT: told.to_json()}


def _tidy(settings: Settings, number: int) -> None:
    """What the stream does hourly."""
    pack_ledger(open_catalog(settings), now=at(number * EVERY_MS))
    # The clock of snapshots is the machine's, and an hour passes in less here: by it, none is being read any more.
    expire_by_count(open_catalog(settings), settings, now=datetime.now(UTC) + READ_GRACE)


def _measured(settings: Settings, start: int, many: int, tidy_cpu_s: float) -> Seen:
    took: list[tuple[float, float]] = []
    catalog = open_catalog(settings)  # as a stream does, once
    for number in range(start, start + many):
        cpu, wall = time.process_time(), time.perf_counter()
        _micro_batch(catalog, settings, number)
        took.append((time.process_time() - cpu, time.perf_counter() - wall))
    ledger = catalog.load_table(SEGMENTS.identifier)
    return Seen(
        median(cpu for cpu, _ in took),
        median(wall for _, wall in took),
        tidy_cpu_s,
        max(_file(catalog, table).stat().st_size for table in (SEGMENTS, IDS)),
        len(ledger.snapshots()),
        len(ledger.inspect.manifests()),
        len(list(_file(catalog, SEGMENTS).parent.glob("*.metadata.json"))),
    )


def _micro_batch(catalog: Catalog, settings: Settings, number: int) -> None:
    run_id = _run_id(number)
    seq, now, segment = seq_at(number * EVERY_MS), at(number * EVERY_MS), _segment(number)
    ledger = ledger_of(catalog)
    assert not ledger.known([segment["path"]])
    assert not ledger.reaching(Stream.TRIGGER, seq, seq)
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    open_run(catalog, run_id, base[SEGMENTS.name], now)
    writing = Attempt(Run(cast(SparkSession, None), catalog, settings, run_id, now))  # nothing here is Spark's
    create_branch(catalog, IDS, run_id, base[IDS.name])
    entries = pa.Table.from_pylist([_entry(number)], schema=IDS.arrow_schema)
    append_rows(catalog, IDS, entries, writing.properties, branch=branch_of(run_id))
    writing.note(IDS, base[IDS.name])
    rows = pa.Table.from_pylist([segment], schema=SEGMENTS.arrow_schema)
    writing.close(rows, Ingested(run_id, 1), base[SEGMENTS.name])
    publish(catalog, run_id)


def _run_id(number: int) -> str:
    return f"stream_{number:016x}"


def _entry(number: int) -> dict[str, Any]:
    ms = number * EVERY_MS
    return {"vin": "WMANF0LD000000001", "ts": at(ms), "request_id": "r", "seq": seq_at(ms), "data_id": "d", "applied": True}


def _segment(number: int) -> dict[str, Any]:
    seq, now = seq_at(number * EVERY_MS), at(number * EVERY_MS)
    row = {"path": segment_path(Stream.TRIGGER, seq, 0), "stream": "trigger", "messages": 1, "first_seq": seq, "last_seq": seq}
    return row | {"run_id": _run_id(number), "ingested_at": now, "began_at": now}


def _file(catalog: Catalog, table: Table) -> Path:
    """Of the table's metadata as they are now."""
    return Path(catalog.load_table(table.identifier).metadata_location.removeprefix("file://"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7])
    parser.add_argument("--measured", type=int, default=40)
    parser.add_argument("--snapshots", type=int, default=Settings().snapshot_max)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    kept = f"{options.snapshots:,} snapshots kept, {options.measured} measured a day"
    rows = run(options.days, options.measured, options.snapshots)
    report("streaming", f"{max(options.days)} days of a micro-batch each 30 s, {kept}", rows)
