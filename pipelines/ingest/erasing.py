"""Erases a vehicle's rows in two snapshots: the first removes the rows, the second drops the manifests that name the old files.

A snapshot that removes files lists these files in its manifests as deleted entries. The column bounds of a deleted entry may
contain the VIN, so the entries must vanish too. There are two cases:

- PyIceberg writes deleted entries to separate manifests. The next snapshot, even an empty one, omits these manifests.
- Spark mixes deleted and live entries in one manifest. `rewrite_manifests` would remove the deleted entries, but skips the only
  manifest of a table. So the first snapshot also replaces one live file of each mixed manifest, which makes PyIceberg rewrite
  that manifest.

Afterwards, all earlier snapshots must be expired.
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
    """Commit a snapshot to the branch that removes the rows matching `keys`, and adds the rows of `replacement`.

    If no row matches, `replacement` is not added either.
    """
    loaded = catalog.load_table(table.identifier)
    changes = dict(matching_files(loaded, loaded.refs()[branch].snapshot_id, keys))
    if replacement is not None and changes:
        file, rows = next(iter(changes.items()))  # any of the rewritten files can take the replacement
        changes[file] = pa.concat_tables([rows, replacement.cast(rows.schema)])
    replace_erased(loaded, branch, changes, properties)


def matching_files(table: IcebergTable, head: int, keys: pa.Table) -> Iterator[tuple[DataFile, pa.Table]]:
    """Yield the snapshot's files that contain rows matching `keys`, each with the rows that do not match."""
    return files_with(table, head, keys, _key_filter(keys))


def _key_filter(keys: pa.Table) -> BooleanExpression:
    """A filter by which Iceberg prunes files. Every row that matches `keys` also matches this filter."""
    if keys.num_rows and "vin" in keys.column_names:
        return where(EqualTo, "vin", keys["vin"][0].as_py())  # all keys have the same VIN
    return AlwaysTrue()


def replace_erased(table: IcebergTable, branch: str, changes: Changes, properties: dict[str, str]) -> None:
    """Replace each file in `changes` by the rows given there for it. Afterwards, no manifest mixes live and deleted files."""
    head = table.refs()[branch].snapshot_id
    files_of_mixed_manifests = list(_files_of_mixed_manifests(table, head, changes))
    if files_of_mixed_manifests:  # replace these files by their own rows, which makes PyIceberg rewrite their manifests
        tasks = {task.file: task for task in table.scan(snapshot_id=head).plan_files()}
        changes = changes | {file: read_files(table, [tasks[file]]) for file in files_of_mixed_manifests}
    replace_files(table, branch, changes, properties)


def _files_of_mixed_manifests(table: IcebergTable, head: int, changes: Changes) -> Iterator[DataFile]:
    """Yield the smallest live file of each manifest that mixes live and deleted files.

    Manifests with a file in `changes` are left out: replacing that file rewrites the manifest already.
    """
    for manifest in _snapshot(table, head).manifests(table.io):
        is_mixed = manifest.deleted_files_count and not _is_deleted_only(manifest)
        if manifest.content == ManifestContent.DATA and is_mixed:
            live_files = [entry.data_file for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
            if changes.keys().isdisjoint(live_files):
                yield min(live_files, key=lambda file: file.file_size_in_bytes)


def lists_deleted(table: IcebergTable, head: int) -> bool:
    """Whether the snapshot has a manifest that lists deleted files only. The next snapshot, even an empty one, omits it."""
    return any(_is_deleted_only(manifest) for manifest in _snapshot(table, head).manifests(table.io))


def _is_deleted_only(manifest: ManifestFile) -> bool:
    """Whether the manifest lists deleted files only."""
    return not manifest.has_added_files() and not manifest.has_existing_files()


def _snapshot(table: IcebergTable, snapshot_id: int) -> Snapshot:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # callers pass the head of a branch
    return snapshot
