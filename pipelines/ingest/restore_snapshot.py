"""Commits a new snapshot that has the files of an older snapshot, or no files.

A rollback uses this instead of moving main back to the older snapshot. Publication uses it if main was rewritten since the run
began (`rebase`).
"""

import uuid

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import write_manifest_list
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

from manifold.contracts.tables import Table
from manifold.lake.commits import retry_conflicts
from manifold.lake.compat import commit
from pipelines.ingest.branches import properties_of

# Properties in which a snapshot's summary has its totals.
TOTALS = (
    "total-data-files",
    "total-delete-files",
    "total-records",
    "total-files-size",
    "total-position-deletes",
    "total-equality-deletes",
)


@retry_conflicts
def replace_content(catalog: Catalog, table: Table, content: Snapshot | None, branch: str, properties: dict[str, str]) -> int:
    """Commit a snapshot to the branch that has exactly the files of `content` (None: no files); return its id."""
    loaded = catalog.load_table(table.identifier)
    metadata = loaded.metadata
    head = loaded.refs()[branch].snapshot_id
    snapshot_id = metadata.new_snapshot_id()
    sequence_number = metadata.next_sequence_number()
    path = loaded.location_provider().new_metadata_location(f"snap-{snapshot_id}-0-{uuid.uuid4()}.avro")
    with write_manifest_list(2, loaded.io.new_output(path), snapshot_id, head, sequence_number, "deflate") as manifests:
        manifests.add_manifests(content.manifests(loaded.io) if content else [])
    old_properties = properties_of(content) if content else {}
    totals = {name: old_properties.get(name, "0") for name in TOTALS}
    summary = Summary(Operation.OVERWRITE, **totals, **properties)
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=head,
        sequence_number=sequence_number,
        manifest_list=path,
        summary=summary,
        schema_id=metadata.current_schema_id,
    )
    move = SetSnapshotRefUpdate.model_validate({"ref-name": branch, "type": "branch", "snapshot-id": snapshot_id})
    guards = (AssertTableUUID(uuid=metadata.table_uuid), AssertRefSnapshotId(ref=branch, snapshot_id=head))
    commit(loaded, guards, (AddSnapshotUpdate(snapshot=snapshot), move))
    return snapshot_id
