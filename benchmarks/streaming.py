"""A stream's commits for a week, simulated: what they take, and how large the tables' metadata is, first and last.

`python -m benchmarks.streaming [--batches 20160] [--snapshots 1000]`: so many micro-batches, half a minute apart by their clock,
each a segment with one trigger, through the code by which every run begins, is published, and forgets old snapshots (the setting
`snapshot_max`). Rows are written without Spark. Each day says on stderr what it took, and a run that is broken off (Ctrl-C,
SIGTERM) reports what it has seen; a week with 1,000 snapshots is hours of CPU.
"""

import argparse
import logging
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import pyarrow as pa
import structlog

from adapters.commits import append_rows
from adapters.lake import ensure_tables, open_catalog
from benchmarks.machine import Row, report
from contracts.envelope import Stream, segment_path
from contracts.settings import Settings
from contracts.tables import IDS, SEGMENTS, Table
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import branch_of, create_branch, open_run
from pipelines.ingest.ledger import ledger_of
from pipelines.ingest.publish import main_snapshots, publish
from pipelines.ingest.run import Ingested, Run
from pipelines.maintenance.ledger_pack import pack_ledger
from pipelines.maintenance.snapshots import READING, expire_by_count
from tests.pipelines.makers import at, seq_at

BATCHES, EVERY_MS, AN_HOUR, A_DAY = 20_160, 30_000, 120, 2_880
AIM = 1.5  # the last part's against the second's: in the first, the tables have few snapshots yet
PARTS = 7
SETTING = "{batches:,} micro-batches, 30 s apart, {snapshots:,} snapshots kept"


@dataclass(slots=True)
class Seen:
    """What a run has seen so far."""

    cpu_s: list[float]
    largest: int = 0  # bytes
    metadata_files: int = 0
    manifests: int = 0
    stopped: bool = False


def run(batches: int, snapshots: int) -> Seen:
    """Measure in a folder that is gone afterwards."""
    seen = Seen([])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        settings = Settings(home=Path(folder), snapshot_max=snapshots)
        ensure_tables(open_catalog(settings))
        try:
            for number in range(batches):
                _measured(settings, number, seen)
        except KeyboardInterrupt:
            seen.stopped = True
    return seen


def _measured(settings: Settings, number: int, seen: Seen) -> None:
    began = time.process_time()
    _micro_batch(settings, number)
    seen.cpu_s.append(time.process_time() - began)
    if number % AN_HOUR == AN_HOUR - 1:
        pack_ledger(open_catalog(settings), now=at(number * EVERY_MS))
        seen.largest = max(seen.largest, *(_metadata(settings, table) for table in (SEGMENTS, IDS)))
        # The clock of snapshots is the machine's, and an hour passes in less here: by it, none is being read any more.
        expire_by_count(open_catalog(settings), settings, now=datetime.now(UTC) + READING)
        table = open_catalog(settings).load_table(SEGMENTS.identifier)
        seen.manifests = max(seen.manifests, len(table.inspect.manifests()))
        seen.metadata_files = max(seen.metadata_files, len(list(_folder(settings, SEGMENTS).glob("*.metadata.json"))))
    if number % A_DAY == A_DAY - 1:
        took = f"day {number // A_DAY + 1}: {median(seen.cpu_s[-A_DAY:]) * 1000:.0f} ms of CPU a micro-batch"
        most = f"at most {seen.largest:,} bytes of metadata, {seen.metadata_files} files, {seen.manifests} manifests"
        print(f"{took}, {most}", file=sys.stderr, flush=True)


def rows_of(seen: Seen) -> list[Row]:
    """The figures: what a micro-batch took in each part of the run, and the metadata."""
    long = max(1, -(-len(seen.cpu_s) // PARTS))
    parts = [median(seen.cpu_s[start : start + long]) for start in range(0, len(seen.cpu_s), long)]
    second = parts[min(1, len(parts) - 1)]
    what = "a micro-batch's commits, CPU"
    rows = [
        Row(f"{what}, {place} of {len(parts)}", f"{each * 1000:.0f} ms", f"{each / second:.2f}")
        for place, each in enumerate(parts, start=1)
    ]
    last = parts[-1] / second
    rows[-1] = Row(rows[-1].what, rows[-1].figure, rows[-1].ratio, f"≤ {AIM}", last <= AIM)
    return [
        *rows,
        Row("largest metadata of a table", f"{seen.largest / (1 << 20):.1f} MiB"),
        Row("metadata files of ingested_segments", f"{seen.metadata_files}", "", "≤ 51", seen.metadata_files <= 51),
        Row("most manifests of ingested_segments", f"{seen.manifests}"),
    ]


def _micro_batch(settings: Settings, number: int) -> None:
    catalog, run_id = open_catalog(settings), f"stream_{number:016x}"
    seq, now = seq_at(number * EVERY_MS), at(number * EVERY_MS)
    path = segment_path(Stream.TRIGGER, seq, 0)
    ledger = ledger_of(catalog)
    assert not ledger.known([path])
    assert not ledger.reaching(Stream.TRIGGER, seq, seq)
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    open_run(catalog, run_id, base[SEGMENTS.name], now)
    writing = Attempt(Run(None, catalog, settings, run_id, now))  # nothing here is Spark's
    entry = {"vin": "WMANF0LD000000001", "ts": now, "request_id": "r", "seq": seq, "data_id": "d", "applied": True}
    create_branch(catalog, IDS, run_id, base[IDS.name])
    append_rows(
        catalog, IDS, pa.Table.from_pylist([entry], schema=IDS.arrow_schema), writing.properties, branch=branch_of(run_id)
    )
    writing.note(IDS, base[IDS.name])
    row = {"path": path, "stream": "trigger", "messages": 1, "first_seq": seq, "last_seq": seq, "run_id": run_id}
    rows = pa.Table.from_pylist([row | {"ingested_at": now, "began_at": now}], schema=SEGMENTS.arrow_schema)
    writing.close(rows, Ingested(run_id, 1), base[SEGMENTS.name])
    publish(catalog, run_id)


def _metadata(settings: Settings, table: Table) -> int:
    location = open_catalog(settings).load_table(table.identifier).metadata_location
    return Path(location.removeprefix("file://")).stat().st_size


def _folder(settings: Settings, table: Table) -> Path:
    return Path(open_catalog(settings).load_table(table.identifier).metadata_location.removeprefix("file://")).parent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--snapshots", type=int, default=Settings().snapshot_max)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    seen = run(options.batches, options.snapshots)
    if seen.cpu_s:
        did = SETTING.format(batches=len(seen.cpu_s), snapshots=options.snapshots) + (" (broken off)" if seen.stopped else "")
        report("streaming", did, rows_of(seen))
