"""Snapshots that replace all rows of some days."""

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
    """Commit a snapshot in which `pieces` replace the files of these days; each call of `pieces` yields all rows once."""
    loaded, wanted = catalog.load_table(table.identifier), set(days)
    head = loaded.refs()[branch].snapshot_id
    old = [task.file for task in loaded.scan(snapshot_id=head).plan_files() if wanted.intersection(days_of(loaded, task.file))]
    with loaded.transaction() as change, change.update_snapshot(properties, branch).overwrite() as files:
        for file in old:
            files.delete_data_file(file)
        for piece in pieces():
            if piece.num_rows:
                for file in write_files(change.table_metadata, piece, loaded.io):
                    files.append_data_file(file)
