"""Snapshots that remove rows: writing one, and repeating it on a main that was rewritten meanwhile."""

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform

from manifold.contracts.tables import Table
from manifold.lake.commits import patiently
from manifold.lake.compat import write_data_files
from pipelines.ingest.branches import properties_of

REMOVES = "manifold.removes"  # property of such a snapshot: the columns by which rows were named, with commas
REMOVES_DAYS = "manifold.removes-days"  # property of one that removes whole days: a JSON array of them
ADDS = "manifold.adds"  # property of one that removes rows and adds others, which are named by all columns
EPOCH = date(1970, 1, 1)


def removes(written: Snapshot) -> str | None:
    """The columns by which this snapshot removes rows; None if it does not."""
    return properties_of(written).get(REMOVES)


@patiently
def remove_rows(
    catalog: Catalog, table: Table, named: pa.Table, branch: str, properties: dict[str, str], more: pa.Table | None = None
) -> None:
    """One snapshot on the branch without the rows whose values are among `named`; its columns are those by which they are.

    `more` are rows that come in their place.
    """
    loaded, columns = catalog.load_table(table.identifier), named.column_names
    unwanted = _keys(named, columns)
    head = loaded.refs()[branch].snapshot_id
    changed: list[tuple[FileScanTask, pa.Table]] = []
    for task in loaded.scan(snapshot_id=head).plan_files():
        if pc.any(_is_in(_read(loaded, [task], columns), unwanted)).as_py():
            rows = _read(loaded, [task], [field.name for field in loaded.schema().fields])
            changed.append((task, rows.filter(pc.invert(_is_in(rows, unwanted)))))
    with (
        loaded.transaction() as change,
        change.update_snapshot(properties | {REMOVES: ",".join(columns)}, branch).overwrite() as files,
    ):
        for task, _ in changed:
            files.delete_data_file(task.file)
        for rest in [*(rows for _, rows in changed), *([more] if more is not None else [])]:
            if rest.num_rows:
                for file in write_data_files(change.table_metadata, rest, loaded.io):
                    files.append_data_file(file)


def repeat_removal(catalog: Catalog, table: Table, written: Snapshot, branch: str, properties: dict[str, str]) -> None:
    """Remove from `branch` the rows that `written` has removed from its parent; add those that it has added in their place."""
    loaded, columns = catalog.load_table(table.identifier), properties_of(written)[REMOVES].split(",")
    gone, more = _exchanged(loaded, written, columns)
    if ADDS not in properties_of(written):
        remove_rows(catalog, table, gone, branch, properties)
        return
    rows = more.select(table.arrow_schema.names).cast(table.arrow_schema)
    remove_rows(catalog, table, gone, branch, properties | {ADDS: "true"}, rows)


def removed(table: IcebergTable, written: Snapshot, columns: Sequence[str]) -> pa.Table:
    """The values in these columns by which `written` has removed rows from its parent."""
    return _exchanged(table, written, columns)[0]


def _exchanged(table: IcebergTable, written: Snapshot, columns: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The values in these columns that `written` has removed from its parent, and those that it has added.

    Rows with such values went wherever they were, so the files that only one of both snapshots has tell all of them.
    """
    before, after = (_files(table, at) for at in (written.parent_snapshot_id, written.snapshot_id))
    had, has = (
        _read(table, [task for file, task in one.items() if file not in other], columns)
        for one, other in ((before, after), (after, before))
    )
    return had.filter(pc.invert(_is_in(had, _keys(has, columns)))), has.filter(pc.invert(_is_in(has, _keys(had, columns))))


@patiently
def remove_days(catalog: Catalog, table: Table, days: Collection[date], branch: str, properties: dict[str, str]) -> None:
    """One snapshot on the branch without the files of these days, by the partition that holds them; no row is read."""
    loaded = catalog.load_table(table.identifier)
    head, gone = loaded.refs()[branch].snapshot_id, set(days)
    named = properties | {REMOVES_DAYS: json.dumps(sorted(day.isoformat() for day in gone))}
    files = [task.file for task in loaded.scan(snapshot_id=head).plan_files() if gone.intersection(days_of(loaded, task.file))]
    with loaded.transaction() as change, change.update_snapshot(named, branch).overwrite() as removal:
        for file in files:
            removal.delete_data_file(file)


def repeat_days(catalog: Catalog, table: Table, written: Snapshot, branch: str, properties: dict[str, str]) -> None:
    """Remove from `branch` the days that `written` has removed."""
    days = [date.fromisoformat(day) for day in json.loads(properties_of(written)[REMOVES_DAYS])]
    remove_days(catalog, table, days, branch, properties)


def days_of(table: IcebergTable, file: DataFile) -> list[date]:
    """The day that a file of a table with days is about; none, where its partition is by something else."""
    spec = table.specs()[file.spec_id]
    values = [file.partition[place] for place, field in enumerate(spec.fields) if isinstance(field.transform, DayTransform)]
    return [value if isinstance(value, date) else EPOCH + timedelta(days=value) for value in values if value is not None]


def _files(table: IcebergTable, snapshot_id: int | None) -> dict[tuple[str, ...], FileScanTask]:
    """What is to be read of a snapshot, by file and what engines have deleted in it."""
    tasks = table.scan(snapshot_id=snapshot_id).plan_files()
    return {(task.file.file_path, *sorted(deletes.file_path for deletes in task.delete_files)): task for task in tasks}


def _read(table: IcebergTable, tasks: Iterable[FileScanTask], columns: Sequence[str]) -> pa.Table:
    schema = table.schema().select(*columns)
    return ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_table(tasks).select(list(columns))


def _is_in(rows: pa.Table, keys: pa.Table) -> pa.Array:
    return pc.is_in(_joined(rows, keys.column_names[:-1]), value_set=keys[keys.column_names[-1]])


def _keys(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    return rows.select(columns).append_column("key", _joined(rows, columns))


def _joined(rows: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    """One text for each row; no value that names a row holds a line's end."""
    texts = [pc.cast(rows[column], pa.large_string()) for column in columns]
    return pc.binary_join_element_wise(*texts, pa.scalar("\n", pa.large_string())) if len(texts) > 1 else texts[0]
