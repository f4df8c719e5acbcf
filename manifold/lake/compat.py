"""The private names of PyIceberg that Manifold uses, each with why and what ends it. No other file of the product imports one."""

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)


def commit(table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]) -> None:
    """Change a table's metadata if the requirements hold; old metadata files go, as after PyIceberg's own commits.

    `Catalog.commit_table`, which is public, leaves one metadata file behind each time.
    """
    table._do_commit(updates, requirements)


def require(change: Transaction, requirement: TableRequirement) -> None:
    """Make a transaction fail unless this holds. It has no public way to ask for more than its own changes need."""
    change._apply((), (requirement,))


def applied(
    metadata: TableMetadata, updates: tuple[TableUpdate, ...], *, replaces: str | None = None
) -> tuple[TableMetadata, bool]:
    """The metadata with these updates, and whether they change anything; never changed in place.

    `update_table_metadata`, which is public, copies all of the metadata: with 1,000 snapshots that took seconds an append.
    `replaces` is the metadata file that it takes the place of, for its log.
    """
    made, context = metadata, _TableMetadataUpdateContext()
    for update in updates:
        made = _apply_table_update(update, made, context)
    changes = context.has_changes()
    if changes and replaces is not None:
        made = _update_table_metadata_log(made, replaces, metadata.last_updated_ms)
    return made, changes


def stream_batches(scan: ArrowScan, io: FileIO, task: FileScanTask) -> Iterator[pa.RecordBatch]:
    """The rows of one file, batch by batch. `ArrowScan.to_record_batches`, which is public, holds all of them at once."""
    yield from scan._record_batches_from_scan_tasks_and_deletes([task], _read_all_delete_files(io, [task]))
