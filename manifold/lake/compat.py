"""The private names of PyIceberg that Manifold uses, each with its reason and when it can go. No other file imports one."""

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata


def commit(table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]) -> None:
    """Change a table's metadata if the requirements hold, and delete old metadata files as PyIceberg's own commits do.

    `Catalog.commit_table`, which is public, leaves one metadata file behind each time.
    """
    table._do_commit(updates, requirements)


def require(change: Transaction, requirement: TableRequirement) -> None:
    """Make a transaction fail unless this holds. There is no public way to require more than the changes need."""
    change._apply((), (requirement,))


class Change(Transaction):
    """A transaction that computes the staged metadata once per update.

    PyIceberg copies all metadata at every access, some twenty times per append: 0.7 s with 1,000 snapshots. Can go when PyIceberg
    caches it (apache/iceberg-python#3784).
    """

    def __init__(self, table: Table, autocommit: bool = False) -> None:
        super().__init__(table, autocommit)
        self._staged: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the staged updates; never changed in place."""
        base, updates = self._table.metadata, self._updates
        if not updates:
            return base
        if self._staged is None or self._staged[0] is not base or self._staged[1] is not updates:
            self._staged = base, updates, update_table_metadata(base, updates)
        return self._staged[2]


def stream_batches(scan: ArrowScan, io: FileIO, task: FileScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file in batches. `ArrowScan.to_record_batches`, which is public, holds all of them at once."""
    yield from scan._record_batches_from_scan_tasks_and_deletes([task], _read_all_delete_files(io, [task]))
