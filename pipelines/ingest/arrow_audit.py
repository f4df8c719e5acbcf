"""The audit without Spark: the rows that a run adds, in memory or in their files, and the look-ups of its rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, IsNull
from pyiceberg.io.pyarrow import PyArrowFileIO

from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import DATA, ECQ_PAYLOAD, ECQ_SEQNO, IDS, META, SEGMENTS, XRAY_RAW, Table
from manifold.lake.hashes import AT_ONCE
from pipelines.ingest.arrow_commits import ALL, MOST_MERGED, MOST_READ, between, changed_rows, matching
from pipelines.ingest.branches import properties_of
from pipelines.ingest.payload_days import DAY_OF, is_index_whole, rows_near, spans_of
from pipelines.ingest.publish import PinnedSnapshot
from pipelines.populate.snapshot_range import ALL_ROWS, SnapshotRange
from pipelines.spark.needed import NeedsSpark

Lookup = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one process holds for an audit."""

    rows: int  # that a run has added to one table
    bytes: int  # of the files that it has added to one table
    merged: int  # rows of files that it has written again
    read: int  # rows of files in which some are looked for
    in_files: int = 0  # that a run has added to one table, and that are left in its files


ALONE = Bounds(500_000, 128 << 20, MOST_MERGED, MOST_READ)
# Where Spark runs, it is asked where that is quicker: it takes some five queries for a table, of 50 ms each.
BESIDE_SPARK = Bounds(20_000, 16 << 20, 20_000, 200_000, AT_ONCE)
NOTHING = Bounds(-1, -1, -1, -1)


def rows_of(catalog: Catalog, pinned: PinnedSnapshot, bounds: Bounds) -> pa.Table:
    """The rows that a run's snapshot adds; of a merged table, those that it leaves otherwise than they were.

    Raises:
        NeedsSpark: they are more than the bounds.
    """
    table, loaded = pinned.table, catalog.load_table(pinned.table.identifier)
    snapshot = loaded.snapshot_by_id(pinned.snapshot_id)
    assert snapshot is not None  # it is the head of a branch, or pinned by one
    before, properties = snapshot.parent_snapshot_id, properties_of(snapshot)
    assert before is not None  # a run begins from main
    if table is META:
        return changed_rows(loaded, before, snapshot.snapshot_id, most=bounds.merged)
    rows, size = (int(properties.get(f"added-{what}", "0")) for what in ("records", "files-size"))
    if rows > bounds.rows or size > bounds.bytes:
        raise NeedsSpark(f"{rows} rows of {table.name} are to be judged")
    added = SnapshotRange(table, before, snapshot.snapshot_id, 1)
    return added.read(catalog, ALL_ROWS, table.arrow_schema.names).select(table.arrow_schema.names).cast(_nullable(table))


def files_of(catalog: Catalog, pinned: PinnedSnapshot, bounds: Bounds) -> ds.Dataset | None:
    """The rows that a run's snapshot adds to the table of entries, in the files that it has written.

    DuckDB reads of them what a rule is about, and no more of it is in memory than it works at. That takes a sixth of what Spark
    takes for the same questions. The rules of other tables with as many rows look up as many values, for which Spark is needed.

    None: it is another table; there are more rows than the bounds; or PyArrow does not reach the table's storage.
    """
    table, loaded = pinned.table, catalog.load_table(pinned.table.identifier)
    if table is not IDS or not isinstance(loaded.io, PyArrowFileIO):
        return None
    snapshot = loaded.snapshot_by_id(pinned.snapshot_id)
    assert snapshot is not None  # it is the head of a branch, or pinned by one
    added = SnapshotRange(table, snapshot.parent_snapshot_id, snapshot.snapshot_id, 1)
    tasks = list(added.scan(catalog).plan_files())
    if not 0 < sum(task.file.record_count for task in tasks) <= bounds.in_files:
        return None
    places = [loaded.io.parse_location(task.file.file_path, loaded.io.properties) for task in tasks]
    scheme, netloc, _ = places[0]
    storage = loaded.io.fs_by_scheme(scheme, netloc)
    return ds.dataset([path for _, _, path in places], _nullable(table), "parquet", filesystem=storage)


def _nullable(table: Table) -> pa.Schema:
    """The table's columns; nulls are let through, because some rules are about them."""
    return pa.schema([pa.field(column.name, column.type) for column in table.columns])


def lookups(
    catalog: Catalog, written: Sequence[PinnedSnapshot], added: Mapping[str, pa.Table], bounds: Bounds
) -> Mapping[str, Lookup]:
    """By table in which rules about `added` look values up: what finds the rows with certain values, the run's own among them.

    Of the ledger only rows that can be about the run's segments are looked at: those of their days, and of none. Of the payloads
    only those of the days that can hold what the run has seen. A look-up raises `NeedsSpark` beyond the bounds.
    """
    versions = {pinned.table.name: pinned.snapshot_id for pinned in written}
    looked_in = (META, IDS, ECQ_PAYLOAD, ECQ_SEQNO, *([XRAY_RAW] if XRAY_RAW.name in versions else []))
    found = {table.name: _lookup(catalog, table, versions.get(table.name), bounds) for table in looked_in}
    spans = spans_of(days_of(added.get(META.name), "stored_at"), days_of(added.get(DATA.name), DAY_OF))
    near = rows_near(spans) if is_index_whole(catalog, versions) else [ALL]
    found[DATA.name] = _lookup(catalog, DATA, versions.get(DATA.name), bounds, near)
    if SEGMENTS.name not in added:
        return found
    days = pc.min_max(added[SEGMENTS.name]["began_at"]).as_py()
    of_none: BooleanExpression = IsNull(term="began_at")
    within = [of_none, *([between("began_at", days["min"], days["max"])] if days["min"] else [])]
    return found | {SEGMENTS.name: _lookup(catalog, SEGMENTS, versions.get(SEGMENTS.name), bounds, within)}


def days_of(rows: pa.Table | None, column: str) -> list[date | None]:
    """The days in a column; none where there are no rows."""
    days: list[date | None] = [] if rows is None else pc.unique(pc.cast(rows[column], pa.date32())).to_pylist()
    return days


def _lookup(
    catalog: Catalog, table: Table, version: int | None, bounds: Bounds, within: Sequence[BooleanExpression] = (ALL,)
) -> Lookup:
    def find(keys: pa.Table) -> pa.Table:
        snapshot_id = version or catalog.load_table(table.identifier).metadata.current_snapshot_id
        assert snapshot_id is not None  # every table has one from its making on
        near: BooleanExpression = ALL
        if "seq" in keys.column_names and keys.num_rows:  # the day of such a table's rows is that of their seq
            first, last = pc.min_max(keys["seq"]).as_py().values()
            assert table.day_of is not None
            near = And(between("seq", first, last), between(table.day_of, datetime_of(first), datetime_of(last)))
        if "captured_at" in keys.column_names and keys.num_rows:
            near = And(near, between("captured_at", *pc.min_max(keys["captured_at"]).as_py().values()))
        filters = (And(each, near) for each in within)
        return matching(catalog, table, snapshot_id, keys, keys.column_names, *filters, most=bounds.read)

    return find
