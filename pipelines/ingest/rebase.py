"""Repeats a run's change on top of main, if main's files were rewritten since the run began.

No rows of main can have changed since the run began: runs are committed one after the other, a run begins only when all earlier
runs are in every main, and other jobs that move main rewrite files without changing rows.

If the run appended files, they are appended to main again. This keeps the rewritten files, which matters to streaming ingest:
with it, a run is always open, so otherwise every compaction would be undone. If the run made any other change, main gets the
content of the run's snapshot. The rewritten files are then lost, and the table is compacted again later.
"""

import secrets

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from manifold.contracts.tables import Table
from manifold.lake.commits import retry_conflicts
from pipelines.ingest.branches import ATTEMPT, PROPERTY_PREFIX, REPEAT, REPEATS, drop_branch, properties_of
from pipelines.ingest.restore_snapshot import replace_content


@retry_conflicts
def rebase_onto(catalog: Catalog, table: Table, written: Snapshot, main: Snapshot) -> int:
    """Repeat the change of the run's snapshot `written` on top of `main`; return the id of the new snapshot.

    The snapshot is committed to a temporary branch, which is dropped. The caller moves main to the snapshot.
    """
    branch = f"{REPEAT}{secrets.token_hex(4)}"
    catalog.load_table(table.identifier).manage_snapshots().create_branch(main.snapshot_id, branch).commit()
    loaded = catalog.load_table(table.identifier)
    run_properties = {name: value for name, value in properties_of(written).items() if name.startswith(PROPERTY_PREFIX)}
    properties = run_properties | {ATTEMPT: branch, REPEATS: str(written.snapshot_id)}
    try:
        if written.summary is not None and written.summary.operation is Operation.APPEND:
            _append(loaded, written, branch, properties)
        else:
            replace_content(catalog, table, written, branch, properties)
        reloaded = catalog.load_table(table.identifier)
        repeated = reloaded.snapshot_by_name(branch)
        # If another job dropped the branch before the commit, PyIceberg has created it again, without the history of main.
        if all(snapshot.snapshot_id != main.snapshot_id for snapshot in ancestors_of(repeated, reloaded.metadata)):
            raise CommitFailedException(f"another job has dropped the branch {branch} of {table.identifier}")
    finally:
        drop_branch(catalog, table, branch)
    assert repeated is not None  # `main` is among its ancestors
    return repeated.snapshot_id


def _append(table: IcebergTable, written: Snapshot, branch: str, properties: dict[str, str]) -> None:
    """Append the files that `written` has added to the branch, with the partition spec with which they were written.

    PyIceberg uses the table's current spec for all files. If the files have another one, it becomes the current spec in the local
    copy of the metadata. Only the snapshot is committed, not this copy. The commit is not retried, because a retry would reload
    the metadata and so lose the spec.
    """
    files = added_files(table, written)
    spec_ids = {file.spec_id for file in files}
    if any(spec_id != table.metadata.default_spec_id for spec_id in spec_ids):
        (spec_id,) = spec_ids  # a run writes a table only once, so all its files have the same spec
        table_properties = table.metadata.properties | {"commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"default_spec_id": spec_id, "properties": table_properties})
    with table.transaction() as transaction, transaction.update_snapshot(properties, branch).fast_append() as append:
        for file in files:
            append.append_data_file(file)


def added_files(table: IcebergTable, written: Snapshot) -> list[DataFile]:
    """The data files that a snapshot added."""
    files: list[DataFile] = []
    for manifest in written.manifests(table.io):
        if manifest.added_snapshot_id == written.snapshot_id:
            entries = manifest.fetch_manifest_entry(table.io)
            files += [entry.data_file for entry in entries if entry.status == ManifestEntryStatus.ADDED]
    return files


def is_change_of(snapshot: Snapshot, snapshot_id: int) -> bool:
    """Whether `snapshot` has the id `snapshot_id`, or is a rebase of the snapshot with that id."""
    return snapshot.snapshot_id == snapshot_id or properties_of(snapshot).get(REPEATS) == str(snapshot_id)
