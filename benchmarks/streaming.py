"""A stream's commits for a week, simulated: what they take, and how large the tables' metadata is, first and last.

`python -m benchmarks.streaming [--batches 20160]`: so many micro-batches, half a minute apart by their clock, each a segment with
one trigger, through the code by which every run begins, is published, and forgets old snapshots. Rows are written without Spark.
"""

import argparse
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import pyarrow as pa

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

BATCHES, EVERY_MS, AN_HOUR = 20_160, 30_000, 120
WINDOWS = 4
AIM = 1.5
KEPT = 51  # the present one, and write.metadata.previous-versions-max
SETTING = "{batches:,} micro-batches, 30 s apart"


def run(batches: int = BATCHES) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        settings = Settings(home=Path(folder))
        ensure_tables(open_catalog(settings))
        took: list[float] = []
        sizes: list[int] = []
        for number in range(batches):
            began = time.perf_counter()
            _micro_batch(settings, number)
            took.append(time.perf_counter() - began)
            if number % AN_HOUR == AN_HOUR - 1:
                pack_ledger(open_catalog(settings), now=at(number * EVERY_MS))
                # The clock of snapshots is the machine's, and an hour passes in less here: by it, none is being read any more.
                expire_by_count(open_catalog(settings), settings, now=datetime.now(UTC) + READING)
                sizes.append(_metadata(settings, SEGMENTS))
        files = len(list(_folder(settings, SEGMENTS).glob("*.metadata.json")))
    edges = [len(took) * place // WINDOWS for place in range(WINDOWS + 1)]
    windows = [median(took[first:last]) for first, last in pairwise(edges)]
    rows = [
        Row(f"a micro-batch's commits, quarter {place}", f"{each * 1000:.0f} ms", f"{each / windows[1]:.2f}")
        for place, each in enumerate(windows, start=1)
    ]
    last = windows[-1] / windows[1]
    rows[-1] = Row(rows[-1].what, rows[-1].figure, rows[-1].ratio, f"≤ {AIM}", last <= AIM)
    most = max(sizes, default=0) / (1 << 20)
    return [
        *rows,
        Row("largest metadata of ingested_segments", f"{most:.1f} MiB"),
        Row("metadata files of it", f"{files}", "", "≤ 51"),
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
    writing = Attempt(Run(None, catalog, settings, run_id, now))  # type: ignore[arg-type]  # nothing here is Spark's
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
    options = parser.parse_args()
    report("streaming", SETTING.format(batches=options.batches), run(options.batches))
