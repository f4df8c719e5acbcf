"""The private names of PyIceberg that Manifold uses, each with its reason. No other file imports one."""

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata


def commit(table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]) -> None:
    """Change a table's metadata if the requirements hold; then delete old metadata files, as PyIceberg's own commits do.

    The public `Catalog.commit_table` does not delete any, so each call would leave one metadata file behind.
    """
    table._do_commit(updates, requirements)


def add_requirement(transaction: Transaction, requirement: TableRequirement) -> None:
    """Make the commit of a transaction fail unless this requirement holds. PyIceberg has no public way to do so."""
    transaction._apply((), (requirement,))


class Change(Transaction):
    """A transaction that computes its staged metadata only once per update.

    PyIceberg copies all metadata at every access, some twenty times per append: 0.7 s with 1,000 snapshots. This class can be
    removed when PyIceberg caches the staged metadata (apache/iceberg-python#3784).
    """

    def __init__(self, table: Table, autocommit: bool = False) -> None:
        super().__init__(table, autocommit)
        # The table's metadata, the staged updates, and the result of applying these updates to that metadata.
        self._cached: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the staged updates applied."""
        base, updates = self._table.metadata, self._updates
        if not updates:
            return base
        if self._cached is not None:
            cached_base, cached_updates, staged = self._cached
            if cached_base is base and cached_updates is updates:  # PyIceberg replaces both, and never changes them in place
                return staged
        staged = update_table_metadata(base, updates)
        self._cached = base, updates, staged
        return staged


def stream_batches(scan: ArrowScan, io: FileIO, task: FileScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file in batches. The public `ArrowScan.to_record_batches` would hold all batches in memory."""
    yield from scan._record_batches_from_scan_tasks_and_deletes([task], _read_all_delete_files(io, [task]))
