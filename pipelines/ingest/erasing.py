"""Erases a vehicle's rows in two snapshots: the first removes the rows, the second drops the manifests that name them.

A removal lists the removed files again, as deleted entries, whose bounds may be the VIN itself. PyIceberg writes these entries
to separate manifests, and omits such manifests from the next snapshot, even an empty one. Spark mixes deleted and live entries
in one manifest; `rewrite_manifests` would remove the deleted ones, but skips a table's only manifest. So the first snapshot
also replaces one live file of each mixed manifest, which makes PyIceberg rewrite it. All earlier snapshots must be expired.
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
from manifold.lake.commits import retry_conflicts
from manifold.lake.data_files import read_files
from pipelines.ingest.delete_rows import Changes, files_with, replace_files


@retry_conflicts
def erase_rows(
    catalog: Catalog,
    table: Table,
    keys: pa.Table,
    branch: str,
    properties: dict[str, str],
    *,
    replacement: pa.Table | None = None,
) -> None:
    """Commit a snapshot to the branch without the rows that match `keys`, and with those of `replacement`."""
    loaded = catalog.load_table(table.identifier)
    changes = dict(matching_files(loaded, loaded.refs()[branch].snapshot_id, keys))
    if replacement is not None and changes:
        file, rows = next(iter(changes.items()))
        changes[file] = pa.concat_tables([rows, replacement.cast(rows.schema)])
    replace_erased(loaded, branch, changes, properties)


def matching_files(table: IcebergTable, head: int, keys: pa.Table) -> Iterator[tuple[DataFile, pa.Table]]:
    """Files of a snapshot that contain rows matching `keys`, each with its remaining rows."""
    return files_with(table, head, keys, _key_filter(keys))


def _key_filter(keys: pa.Table) -> BooleanExpression:
    """A filter that prunes files by their column statistics."""
    if keys.num_rows and "vin" in keys.column_names:
        return where(EqualTo, "vin", keys["vin"][0].as_py())  # keys name one vehicle
    return AlwaysTrue()


def replace_erased(table: IcebergTable, branch: str, changes: Changes, properties: dict[str, str]) -> None:
    """Replace each file by the rows given for it, in one snapshot without manifests that mix live and deleted files."""
    head = table.refs()[branch].snapshot_id
    mixed = dict.fromkeys(_mixed_manifest_files(table, head, changes))
    tasks = {task.file: task for task in table.scan(snapshot_id=head).plan_files()} if mixed else {}
    replace_files(table, branch, changes | {file: read_files(table, [tasks[file]]) for file in mixed}, properties)


def _mixed_manifest_files(table: IcebergTable, head: int, changes: Changes) -> Iterator[DataFile]:
    """The smallest file of each manifest that mixes live and deleted files, unless `changes` already rewrites the manifest."""
    for manifest in _snapshot(table, head).manifests(table.io):
        if manifest.content == ManifestContent.DATA and manifest.deleted_files_count and not _is_deleted_only(manifest):
            files = [entry.data_file for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
            if changes.keys().isdisjoint(files):
                yield min(files, key=lambda file: file.file_size_in_bytes)


def lists_deleted(table: IcebergTable, head: int) -> bool:
    """Whether the snapshot has a manifest of deleted files only; the next snapshot, even an empty one, omits it."""
    return any(_is_deleted_only(manifest) for manifest in _snapshot(table, head).manifests(table.io))


def _is_deleted_only(manifest: ManifestFile) -> bool:
    return not manifest.has_added_files() and not manifest.has_existing_files()


def _snapshot(table: IcebergTable, snapshot_id: int) -> Snapshot:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # it is the head of a branch
    return snapshot
