"""The reads and commits of a small run, with PyIceberg alone, within the memory of this process."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import DATA, META, Table
from manifold.lake.catalog import where
from manifold.lake.commits import patiently
from pipelines.ingest.arrow_rows import Rows, merged_meta
from pipelines.spark.needed import NeedsSpark

MOST_READ = 5_000_000  # rows of a table in which some are looked for
MOST_MERGED = 1_000_000  # rows of files that are written again because some of them change
ROW_GROUP = 1 << 20  # bytes, as `manifold.contracts.tables.SMALL_ROW_GROUPS` has it for Spark
FEW_LITERALS = 200  # more of them rule out no file
ALL = AlwaysTrue()


def between(column: str, first: datetime | int, last: datetime | int) -> BooleanExpression:
    """Rows whose value here lies between these, or is one of them."""
    return And(where(GreaterThanOrEqual, column, first), where(LessThanOrEqual, column, last))


def matching(
    catalog: Catalog,
    table: Table,
    snapshot_id: int,
    keys: pa.Table,
    columns: Sequence[str],
    *within: BooleanExpression,
    most: int = MOST_READ,
) -> pa.Table:
    """These columns of the rows whose values in the columns of `keys` are among those there.

    Only rows `within` are looked at, of which none is in two of these. One filter after the other: PyIceberg cannot compare a
    partition that is null, which it meets where a filter is about those of no day and others.

    Raises:
        NeedsSpark: more than `most` rows would have to be looked at.
    """
    loaded, last = catalog.load_table(table.identifier), keys.column_names[-1]
    schema = pa.schema([table.arrow_schema.field(name) for name in columns])
    wanted = pc.unique(keys[last])
    if not len(wanted):
        return schema.empty_table()
    named = In(term=last, literals=set(wanted.to_pylist())) if len(wanted) <= FEW_LITERALS else ALL
    scans = [loaded.scan(And(each, named), tuple(columns), snapshot_id=snapshot_id) for each in within or (ALL,)]
    rows = sum(task.file.record_count for scan in scans for task in scan.plan_files())
    if rows > most:
        raise NeedsSpark(f"{rows} rows of {table.name} are to be looked through")
    known = set(zip(*(keys[name].to_pylist() for name in keys.column_names), strict=True))
    found = []
    for batch in (batch for scan in scans for batch in scan.to_arrow_batch_reader()):
        near = pa.Table.from_batches([batch]).select(list(columns)).cast(schema)
        near = near.filter(pc.is_in(near[last], wanted))
        mine = zip(*(near[name].to_pylist() for name in keys.column_names), strict=True)
        found.append(near.filter(pa.array([key in known for key in mine], pa.bool_())))
    return pa.concat_tables([schema.empty_table(), *found])


@patiently
def append_payloads(catalog: Catalog, rows: pa.Table, branch: str, properties: Mapping[str, str]) -> None:
    """Append payloads, in row groups of about a MiB. PyIceberg bounds groups by rows, so it is told how many these are."""
    loaded = catalog.load_table(DATA.identifier)
    a_group = max(1, ROW_GROUP * rows.num_rows // max(rows.nbytes, 1))
    once = loaded.metadata.properties | {"write.parquet.row-group-limit": str(a_group)}
    loaded.metadata = loaded.metadata.model_copy(update={"properties": once})  # of which nothing is committed
    loaded.append(rows, snapshot_properties=dict(properties), branch=branch)


@patiently
def merge_meta(catalog: Catalog, changes: Rows, branch: str, properties: Mapping[str, str]) -> None:
    """One snapshot on the branch of `sdv_fanout_meta` with these changes; files without a row that changes stay as they are.

    Raises:
        NeedsSpark: too many rows would have to be written again.
    """
    loaded = catalog.load_table(META.identifier)
    head = loaded.refs()[branch].snapshot_id
    ids = pa.array([row["data_id"] for row in changes], pa.string())
    near = In(term="data_id", literals=set(ids.to_pylist())) if len(ids) <= FEW_LITERALS else ALL
    touched = [task for task in loaded.scan(near, snapshot_id=head).plan_files() if _has(loaded, task, ids)]
    if (rows := sum(task.file.record_count for task in touched)) > MOST_MERGED:
        raise NeedsSpark(f"files of {rows} rows of {META.name} are to be written again")
    had = _read(loaded, touched, loaded.schema().column_names).to_pylist() if touched else []
    merged = merged_meta(had, changes)
    if not touched:
        loaded.append(merged, snapshot_properties=dict(properties), branch=branch)
        return
    with loaded.transaction() as change, change.update_snapshot(dict(properties), branch).overwrite() as files:
        for task in touched:
            files.delete_data_file(task.file)
        for file in _dataframe_to_data_files(change.table_metadata, merged, loaded.io):
            files.append_data_file(file)


def changed_rows(table: IcebergTable, before: int, after: int, *, most: int = MOST_MERGED) -> pa.Table:
    """The rows that a merge has left otherwise than they were, or added.

    Raises:
        NeedsSpark: the merge has written more than `most` rows, those among them that are as they were.
    """
    had, has = (_files(table, snapshot_id) for snapshot_id in (before, after))
    old = [task for key, task in had.items() if key not in has]
    new = [task for key, task in has.items() if key not in had]
    if (rows := sum(task.file.record_count for task in (*old, *new))) > 2 * most:
        raise NeedsSpark(f"{rows} rows of {table.name()[-1]} are to be compared")
    names = table.schema().column_names
    was = {row["data_id"]: row for row in _read(table, old, names).to_pylist()}
    rows_now = [row for row in _read(table, new, names).to_pylist() if was.get(row["data_id"]) != row]
    return pa.Table.from_pylist(rows_now, schema=META.arrow_schema)


def _files(table: IcebergTable, snapshot_id: int) -> dict[tuple[str, ...], FileScanTask]:
    tasks = table.scan(snapshot_id=snapshot_id).plan_files()
    return {(task.file.file_path, *sorted(deletes.file_path for deletes in task.delete_files)): task for task in tasks}


def _has(table: IcebergTable, task: FileScanTask, ids: pa.Array) -> bool:
    return bool(pc.any(pc.is_in(_read(table, [task], ["data_id"])["data_id"], ids)).as_py())


def _read(table: IcebergTable, tasks: Sequence[FileScanTask], columns: Sequence[str]) -> pa.Table:
    schema = table.schema().select(*columns)
    return ArrowScan(table.metadata, table.io, schema, ALL).to_table(tasks).select(list(columns))
