"""Rows added to a table between two of its snapshots. No Spark."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression, EqualTo
from pyiceberg.table import DataScan, FileScanTask, IncrementalAppendScan
from pyiceberg.table.snapshots import Operation, Snapshot

from manifold.contracts.envelope import Stream
from manifold.contracts.seq import COUNTER_BITS, MAX_NODE
from manifold.contracts.tables import SEGMENTS, Table
from manifold.lake.catalog import where
from pipelines.ingest.branches import ancestors, properties_of

ALL_ROWS = AlwaysTrue()


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """The snapshots of a table after `start` (None: from the beginning) up to `end`, and the number of rows they added."""

    table: Table
    start: int | None
    end: int
    rows: int

    def scan(
        self, catalog: Catalog, row_filter: BooleanExpression = ALL_ROWS, columns: Iterable[str] = ("*",)
    ) -> DataScan | IncrementalAppendScan:
        """A PyIceberg scan of the rows that these snapshots added."""
        loaded, fields = catalog.load_table(self.table.identifier), tuple(columns)
        if self.start is None:
            return loaded.scan(row_filter, fields, snapshot_id=self.end)
        if not self.rows:  # PyIceberg rejects an incremental scan of no snapshots
            return loaded.scan(AlwaysFalse(), fields, snapshot_id=self.end)
        return loaded.incremental_append_scan(
            from_snapshot_id_exclusive=self.start,
            to_snapshot_id_inclusive=self.end,
            row_filter=row_filter,
            selected_fields=fields,
        )

    def most(self, catalog: Catalog, row_filter: BooleanExpression) -> int:
        """An upper bound of the rows that pass the filter: those in files that the metadata cannot rule out."""
        tasks: Iterable[FileScanTask] = self.scan(catalog, row_filter).plan_files()
        return sum(task.file.record_count for task in tasks)

    def read(self, catalog: Catalog, row_filter: BooleanExpression, columns: Iterable[str]) -> pa.Table:
        """Read the rows that pass the filter into memory."""
        return self.scan(catalog, row_filter, columns).to_arrow()


def range_since(catalog: Catalog, table: Table, since: int | None) -> SnapshotRange:
    """The rows added since the snapshot `since`; all rows if it is None or has expired."""
    history = list(ancestors(catalog.load_table(table.identifier)))
    start = next((place for place, snapshot in enumerate(history) if snapshot.snapshot_id == since), None)
    if start is not None:
        return SnapshotRange(table, history[start].snapshot_id, history[0].snapshot_id, sum(_added(history[:start])))
    total = properties_of(history[0]).get("total-records", "0")
    return SnapshotRange(table, None, history[0].snapshot_id, int(total))


def _added(snapshots: Iterable[Snapshot]) -> Iterator[int]:
    for snapshot in snapshots:
        if snapshot.summary and snapshot.summary.operation == Operation.APPEND:
            yield int(properties_of(snapshot).get("added-records", "0"))


def newest_before(catalog: Catalog, table: Table, instant: datetime) -> int | None:
    """The newest snapshot of main made at or before `instant`; None if there is none."""
    latest_ms = round(instant.timestamp() * 1000)
    old = (s.snapshot_id for s in ancestors(catalog.load_table(table.identifier)) if s.timestamp_ms <= latest_ms)
    return next(old, None)


def newest_seqs(catalog: Catalog, segments: int | None = None, stream: Stream = Stream.TRIGGER) -> dict[int, int]:
    """By recorder, the highest ingested seq of a stream, as of this snapshot of `ingested_segments` (None: the newest)."""
    of_stream = where(EqualTo, "stream", stream.value)
    scan = catalog.load_table(SEGMENTS.identifier).scan(of_stream, ("last_seq",), snapshot_id=segments)
    newest: dict[int, int] = {}
    for batch in scan.to_arrow_batch_reader():
        seqs = pc.drop_null(batch["last_seq"])
        nodes = pc.bit_wise_and(pc.shift_right(seqs, COUNTER_BITS), MAX_NODE)
        by_node = pa.table({"node": nodes, "seq": seqs}).group_by("node").aggregate([("seq", "max")]).to_pylist()
        newest |= {row["node"]: max(newest.get(row["node"], -1), row["seq_max"]) for row in by_node}
    return newest
