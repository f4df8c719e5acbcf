"""Finds and reads the rows that were added to a table between two of its snapshots. No Spark."""

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
    """The snapshots of a table after `start`, exclusive, up to `end`, inclusive, and the number of rows that they added.

    If `start` is None, the range has all snapshots up to `end`.
    """

    table: Table
    start: int | None
    end: int
    rows: int

    def scan(
        self, catalog: Catalog, row_filter: BooleanExpression = ALL_ROWS, columns: Iterable[str] = ("*",)
    ) -> DataScan | IncrementalAppendScan:
        """Make a PyIceberg scan of those rows that these snapshots added and that pass the filter.

        If `start` is None, these are the rows of the whole table, as of `end`, that pass the filter.
        """
        loaded = catalog.load_table(self.table.identifier)
        fields = tuple(columns)
        if self.start is None:
            return loaded.scan(row_filter, fields, snapshot_id=self.end)
        if not self.rows:
            # If `start` is `end`, the range has no snapshots, and PyIceberg rejects an incremental scan of it. An ordinary scan
            # with a filter that no row passes yields no rows either.
            return loaded.scan(AlwaysFalse(), fields, snapshot_id=self.end)
        return loaded.incremental_append_scan(
            from_snapshot_id_exclusive=self.start,
            to_snapshot_id_inclusive=self.end,
            row_filter=row_filter,
            selected_fields=fields,
        )

    def max_rows(self, catalog: Catalog, row_filter: BooleanExpression) -> int:
        """An upper bound of the number of added rows that pass the filter.

        It is the number of rows in the files that may have such a row by their metadata. No data file is read.
        """
        tasks: Iterable[FileScanTask] = self.scan(catalog, row_filter).plan_files()
        return sum(task.file.record_count for task in tasks)

    def read(self, catalog: Catalog, row_filter: BooleanExpression, columns: Iterable[str]) -> pa.Table:
        """Read the added rows that pass the filter into memory."""
        return self.scan(catalog, row_filter, columns).to_arrow()


def range_since(catalog: Catalog, table: Table, since: int | None) -> SnapshotRange:
    """The range from the snapshot `since` to main's newest snapshot; of all rows if `since` is None or has expired."""
    history = list(ancestors(catalog.load_table(table.identifier)))  # newest first
    newest = history[0]
    newer_than_since: list[Snapshot] = []
    for snapshot in history:
        if snapshot.snapshot_id == since:
            return SnapshotRange(table, since, newest.snapshot_id, sum(_added_rows(newer_than_since)))
        newer_than_since.append(snapshot)
    total = properties_of(newest).get("total-records", "0")
    return SnapshotRange(table, None, newest.snapshot_id, int(total))


def _added_rows(snapshots: Iterable[Snapshot]) -> Iterator[int]:
    """Yield the number of rows that each append added. Other snapshots are left out, as in an incremental scan."""
    for snapshot in snapshots:
        if snapshot.summary and snapshot.summary.operation == Operation.APPEND:
            yield int(properties_of(snapshot).get("added-records", "0"))


def newest_before(catalog: Catalog, table: Table, instant: datetime) -> int | None:
    """The id of the newest snapshot of main that was made at or before `instant`; None if there is none."""
    latest_ms = round(instant.timestamp() * 1000)
    for snapshot in ancestors(catalog.load_table(table.identifier)):  # newest first
        if snapshot.timestamp_ms <= latest_ms:
            return snapshot.snapshot_id
    return None


def newest_seqs(catalog: Catalog, ledger_snapshot_id: int | None = None, stream: Stream = Stream.TRIGGER) -> dict[int, int]:
    """The highest ingested seq of a stream, by recorder.

    `ledger_snapshot_id` is the id of the snapshot of `ingested_segments` to read; None means the newest.
    """
    of_stream = where(EqualTo, "stream", stream.value)
    scan = catalog.load_table(SEGMENTS.identifier).scan(of_stream, ("last_seq",), snapshot_id=ledger_snapshot_id)
    newest: dict[int, int] = {}
    for batch in scan.to_arrow_batch_reader():
        seqs = pc.drop_null(batch["last_seq"])
        nodes = pc.bit_wise_and(pc.shift_right(seqs, COUNTER_BITS), MAX_NODE)  # the recorder's number is a part of each seq
        by_node = pa.table({"node": nodes, "seq": seqs}).group_by("node").aggregate([("seq", "max")]).to_pylist()
        for row in by_node:
            node, seq = row["node"], row["seq_max"]
            if node not in newest or seq > newest[node]:
                newest[node] = seq
    return newest
