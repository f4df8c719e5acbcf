"""Snapshots that remove rows."""

import json
from collections.abc import Collection, Iterator, Sequence
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import DayTransform

from manifold.contracts.tables import Table
from manifold.lake.commits import retry_conflicts
from manifold.lake.data_files import read_files, write_files

REMOVES_DAYS = "manifold.removes-days"  # snapshot property: the days that it removes as a whole, a JSON array
EPOCH = date(1970, 1, 1)

Changes = dict[DataFile, pa.Table]  # removed file → the rows of it that stay


def replace_files(table: IcebergTable, branch: str, changes: Changes, properties: dict[str, str]) -> None:
    """Commit one snapshot to the branch in which each file is replaced by the rows given for it."""
    with table.transaction() as change, change.update_snapshot(properties, branch).overwrite() as files:
        for file, rows in changes.items():
            files.delete_data_file(file)
            if rows.num_rows:
                for made in write_files(change.table_metadata, rows, table.io):
                    files.append_data_file(made)


@retry_conflicts
def remove_rows(catalog: Catalog, table: Table, named: pa.Table, branch: str, properties: dict[str, str]) -> None:
    """Commit a snapshot to the branch without the rows that match `named` in all of its columns."""
    loaded = catalog.load_table(table.identifier)
    replace_files(loaded, branch, dict(files_with(loaded, loaded.refs()[branch].snapshot_id, named)), properties)


def files_with(
    table: IcebergTable,
    snapshot_id: int,
    named: pa.Table,
    within: BooleanExpression = AlwaysTrue(),  # noqa: B008  # immutable
) -> Iterator[tuple[DataFile, pa.Table]]:
    """Files of a snapshot that contain rows matching `named`, each with its remaining rows.

    Reads only files that may have rows in `within`.
    """
    unwanted = _keys(named, named.column_names)
    for task in table.scan(within, snapshot_id=snapshot_id).plan_files():
        if pc.any(_is_in(read_files(table, [task], named.column_names), unwanted)).as_py():
            rows = read_files(table, [task])
            yield task.file, rows.filter(pc.invert(_is_in(rows, unwanted)))


@retry_conflicts
def remove_days(catalog: Catalog, table: Table, days: Collection[date], branch: str, properties: dict[str, str]) -> None:
    """Commit a snapshot to the branch without the files of these days, found by partition; no rows are read."""
    loaded = catalog.load_table(table.identifier)
    head, gone = loaded.refs()[branch].snapshot_id, set(days)
    named = properties | {REMOVES_DAYS: json.dumps(sorted(day.isoformat() for day in gone))}
    files = [task.file for task in loaded.scan(snapshot_id=head).plan_files() if gone.intersection(days_of(loaded, task.file))]
    with loaded.transaction() as change, change.update_snapshot(named, branch).overwrite() as removal:
        for file in files:
            removal.delete_data_file(file)


def days_of(table: IcebergTable, file: DataFile) -> list[date]:
    """The day of the file's day partition; empty if it is partitioned by something else."""
    spec = table.specs()[file.spec_id]
    values = [file.partition[place] for place, field in enumerate(spec.fields) if isinstance(field.transform, DayTransform)]
    return [value if isinstance(value, date) else EPOCH + timedelta(days=value) for value in values if value is not None]


def _is_in(rows: pa.Table, keys: pa.Table) -> pa.Array:
    return pc.is_in(_joined(rows, keys.column_names[:-1]), value_set=keys[keys.column_names[-1]])


def _keys(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    return rows.select(columns).append_column("key", _joined(rows, columns))


def _joined(rows: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    """Each row's values joined into one string; key values contain no newline."""
    texts = [pc.cast(rows[column], pa.large_string()) for column in columns]
    return pc.binary_join_element_wise(*texts, pa.scalar("\n", pa.large_string())) if len(texts) > 1 else texts[0]
