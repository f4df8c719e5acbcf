"""Erases a vehicle's rows from the tables, in two snapshots: the first removes rows, the second drops what names them.

A removal lists the removed files once more, as deleted entries, and their bounds may be the name itself. PyIceberg writes these
entries to manifests of their own and leaves such manifests out of the next snapshot, even of an empty one. Spark puts deleted
entries beside live ones; `rewrite_manifests` would take them out, but skips a table's only manifest. So the first snapshot also
replaces one live file of each such manifest, which has PyIceberg write it anew. All earlier snapshots have to be expired.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.tables import Table
from manifold.lake.catalog import where
from manifold.lake.commits import patiently
from manifold.lake.data_files import read_files
from pipelines.ingest.delete_rows import Changes, files_with, replace_files


@patiently
def erase_rows(catalog: Catalog, table: Table, keys: pa.Table, branch: str, properties: dict[str, str]) -> None:
    """One snapshot on the branch without the rows whose values are among `keys`."""
    loaded = catalog.load_table(table.identifier)
    changes = dict(changed(loaded, loaded.refs()[branch].snapshot_id, keys))
    replace_erased(loaded, branch, changes, properties)


def changed(table: IcebergTable, head: int, keys: pa.Table) -> Iterator[tuple[DataFile, pa.Table]]:
    """The files of a snapshot that have such rows, each with its other rows."""
    return files_with(table, head, keys, _within(keys))


def _within(keys: pa.Table) -> BooleanExpression:
    """What files' own statistics can say."""
    if keys.num_rows and "vin" in keys.column_names:
        return where(EqualTo, "vin", keys["vin"][0].as_py())  # one vehicle's
    return AlwaysTrue()


def replace_erased(table: IcebergTable, branch: str, changes: Changes, properties: dict[str, str]) -> None:
    """One snapshot on the branch in which the rows given for each file replace it; no manifest has live and deleted files."""
    head = table.refs()[branch].snapshot_id
    mixed = dict.fromkeys(_beside_deleted(table, head, changes))
    tasks = {task.file: task for task in table.scan(snapshot_id=head).plan_files()} if mixed else {}
    replace_files(table, branch, changes | {file: read_files(table, [tasks[file]]) for file in mixed}, properties)


def _beside_deleted(table: IcebergTable, head: int, changes: Changes) -> Iterator[DataFile]:
    """The smallest file of each manifest that lists deleted files beside live ones, and of which no file changes anyway."""
    for manifest in _snapshot(table, head).manifests(table.io):
        if manifest.content == ManifestContent.DATA and manifest.deleted_files_count and not _is_deleted_only(manifest):
            files = [entry.data_file for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
            if changes.keys().isdisjoint(files):
                yield min(files, key=lambda file: file.file_size_in_bytes)


def lists_deleted(table: IcebergTable, head: int) -> bool:
    """Whether the snapshot has a manifest that lists deleted files alone; the next snapshot, if empty, does without it."""
    return any(_is_deleted_only(manifest) for manifest in _snapshot(table, head).manifests(table.io))


def _is_deleted_only(manifest: ManifestFile) -> bool:
    return not manifest.has_added_files() and not manifest.has_existing_files()


def _snapshot(table: IcebergTable, snapshot_id: int) -> Snapshot:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # the head of a branch
    return snapshot
