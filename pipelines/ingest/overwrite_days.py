"""Commits snapshots that replace all rows of some days."""

from collections.abc import Callable, Collection, Iterable
from datetime import date

import pyarrow as pa
from pyiceberg.catalog import Catalog

from manifold.contracts.tables import Table
from manifold.lake.commits import retry_conflicts
from manifold.lake.data_files import write_files
from pipelines.ingest.delete_rows import days_of


@retry_conflicts
def overwrite_days(
    catalog: Catalog,
    table: Table,
    days: Collection[date],
    pieces: Callable[[], Iterable[pa.Table]],
    branch: str,
    properties: dict[str, str],
) -> None:
    """Commit a snapshot to the branch that replaces all files of these days by the rows that `pieces` yields.

    A conflicting commit makes this function start again, so `pieces` is a function: each call yields all new rows.
    """
    loaded = catalog.load_table(table.identifier)
    head = loaded.refs()[branch].snapshot_id
    replaced_days = set(days)
    files = [task.file for task in loaded.scan(snapshot_id=head).plan_files()]
    old_files = [file for file in files if replaced_days.intersection(days_of(loaded, file))]
    with loaded.transaction() as transaction, transaction.update_snapshot(properties, branch).overwrite() as overwrite:
        for file in old_files:
            overwrite.delete_data_file(file)
        for piece in pieces():
            if piece.num_rows:
                for new_file in write_files(transaction.table_metadata, piece, loaded.io):
                    overwrite.append_data_file(new_file)
