"""Repeats a run's change on top of a main whose files were rewritten since the run began.

Nothing else can have happened to main: runs commit one after the other, each begins only when all earlier ones are in every
main, and other jobs that move main change files and no rows. So the files that a run appended are appended again: a stream
always has a run open, and would otherwise undo every compaction. After any other change, the table gets the content that the run
produced, and is compacted again later.
"""

import secrets

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from manifold.contracts.tables import Table
from manifold.lake.commits import retry_conflicts
from pipelines.ingest.branches import ATTEMPT, OURS, REPEAT, REPEATS, drop_branch, properties_of
from pipelines.ingest.restore_snapshot import replace_content


@retry_conflicts
def repeat(catalog: Catalog, table: Table, written: Snapshot, main: Snapshot) -> int:
    """Repeat the change of `written` on top of `main`; return the id of a snapshot to which main can be moved."""
    name = f"{REPEAT}{secrets.token_hex(4)}"
    catalog.load_table(table.identifier).manage_snapshots().create_branch(main.snapshot_id, name).commit()
    loaded = catalog.load_table(table.identifier)
    said = {name: value for name, value in properties_of(written).items() if name.startswith(OURS)}
    properties = said | {ATTEMPT: name, REPEATS: str(written.snapshot_id)}
    try:
        if written.summary is not None and written.summary.operation is Operation.APPEND:
            _append(loaded, written, name, properties)
        else:
            replace_content(catalog, table, written, name, properties)
        after = catalog.load_table(table.identifier)
        made = after.snapshot_by_name(name)
        # If the branch was dropped in the meantime, PyIceberg has created it again, without the history of main.
        if all(snapshot.snapshot_id != main.snapshot_id for snapshot in ancestors_of(made, after.metadata)):
            raise CommitFailedException(f"another job has dropped the branch {name} of {table.identifier}")
    finally:
        drop_branch(catalog, table, name)
    assert made is not None  # it has ancestors
    return made.snapshot_id


def _append(table: IcebergTable, written: Snapshot, branch: str, properties: dict[str, str]) -> None:
    """Append the same files, with their own partition spec if the table's has changed since.

    PyIceberg assumes the table's current spec for all files, so the local copy of the metadata gets theirs. Only the snapshot is
    committed, and the commit is not retried, because a retry would reload the metadata.
    """
    files = added_files(table, written)
    specs = {file.spec_id for file in files}
    if specs - {table.metadata.default_spec_id}:
        (spec,) = specs  # a run writes a table once, hence with one spec
        once = table.metadata.properties | {"commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"default_spec_id": spec, "properties": once})
    with table.transaction() as change, change.update_snapshot(properties, branch).fast_append() as append:
        for file in files:
            append.append_data_file(file)


def added_files(table: IcebergTable, written: Snapshot) -> list[DataFile]:
    """The data files that a snapshot added."""
    return [
        entry.data_file
        for manifest in written.manifests(table.io)
        if manifest.added_snapshot_id == written.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED
    ]


def is_change_of(snapshot: Snapshot, written: int) -> bool:
    """Whether `snapshot` is the one that a run wrote as `written`, or repeats its change."""
    return snapshot.snapshot_id == written or properties_of(snapshot).get(REPEATS) == str(written)
