"""Commits snapshots that remove rows or whole days."""

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

REMOVES_DAYS = "manifold.removes-days"  # snapshot property: the days that the snapshot removes entirely, as a JSON array
EPOCH = date(1970, 1, 1)

Changes = dict[DataFile, pa.Table]  # removed file → the remaining rows of that file


def replace_files(table: IcebergTable, branch: str, changes: Changes, properties: dict[str, str]) -> None:
    """Commit one snapshot to the branch: it replaces each file in `changes` by new files with the rows given there for it."""
    with table.transaction() as transaction, transaction.update_snapshot(properties, branch).overwrite() as overwrite:
        for file, rows in changes.items():
            overwrite.delete_data_file(file)
            if rows.num_rows:
                for new_file in write_files(transaction.table_metadata, rows, table.io):
                    overwrite.append_data_file(new_file)


@retry_conflicts
def remove_rows(catalog: Catalog, table: Table, keys: pa.Table, branch: str, properties: dict[str, str]) -> None:
    """Commit a snapshot to the branch that removes the rows equal to a row of `keys` in all columns of `keys`."""
    loaded = catalog.load_table(table.identifier)
    head = loaded.refs()[branch].snapshot_id
    replace_files(loaded, branch, dict(files_with(loaded, head, keys)), properties)


def files_with(
    table: IcebergTable,
    snapshot_id: int,
    keys: pa.Table,
    row_filter: BooleanExpression = AlwaysTrue(),  # noqa: B008  # immutable
) -> Iterator[tuple[DataFile, pa.Table]]:
    """Yield the snapshot's files that contain rows matching `keys`, each with the rows that do not match.

    A row matches if it equals a row of `keys` in all columns of `keys`. Files that cannot contain rows matching `row_filter`, by
    their statistics, are not read.
    """
    joined_keys = _joined(keys, keys.column_names)
    for task in table.scan(row_filter, snapshot_id=snapshot_id).plan_files():
        key_columns = read_files(table, [task], keys.column_names)
        if pc.any(_matches(key_columns, keys.column_names, joined_keys)).as_py():
            rows = read_files(table, [task])
            yield task.file, rows.filter(pc.invert(_matches(rows, keys.column_names, joined_keys)))


@retry_conflicts
def remove_days(catalog: Catalog, table: Table, days: Collection[date], branch: str, properties: dict[str, str]) -> None:
    """Commit a snapshot to the branch that removes all files of these days. Files are found by partition; no rows are read."""
    loaded = catalog.load_table(table.identifier)
    head = loaded.refs()[branch].snapshot_id
    removed_days = set(days)
    properties = properties | {REMOVES_DAYS: json.dumps(sorted(day.isoformat() for day in removed_days))}
    files = [task.file for task in loaded.scan(snapshot_id=head).plan_files()]
    with loaded.transaction() as transaction, transaction.update_snapshot(properties, branch).overwrite() as overwrite:
        for file in files:
            if removed_days.intersection(days_of(loaded, file)):
                overwrite.delete_data_file(file)


def days_of(table: IcebergTable, file: DataFile) -> list[date]:
    """The day of the file's partition, as a list with one element; empty if the table is not partitioned by day."""
    days: list[date] = []
    for index, field in enumerate(table.specs()[file.spec_id].fields):
        value = file.partition[index]
        if isinstance(field.transform, DayTransform) and value is not None:
            # PyIceberg has the day as a date or as the number of days since 1970.
            days.append(value if isinstance(value, date) else EPOCH + timedelta(days=value))
    return days


def _matches(rows: pa.Table, columns: Sequence[str], joined_keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """A boolean per row: whether the row's values in `columns` are among `joined_keys`, which `_joined` has made."""
    return pc.is_in(_joined(rows, columns), value_set=joined_keys)


def _joined(rows: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    """A string per row: the row's values in `columns`, joined by newlines. Key values contain no newline."""
    texts = [pc.cast(rows[column], pa.large_string()) for column in columns]
    if len(texts) == 1:
        return texts[0]
    return pc.binary_join_element_wise(*texts, pa.scalar("\n", pa.large_string()))
