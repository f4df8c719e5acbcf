"""Commits snapshots that give a table the files of another snapshot, or none.

Rollbacks use them so that no main moves backwards; publication uses them where main was rewritten since a run began.
"""

import uuid

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import write_manifest_list
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

from manifold.contracts.tables import Table
from manifold.lake.commits import retry_conflicts
from pipelines.ingest.branches import commit, properties_of

TOTALS = ("data-files", "delete-files", "records", "files-size", "position-deletes", "equality-deletes")


@retry_conflicts
def replace_content(catalog: Catalog, table: Table, content: Snapshot | None, branch: str, properties: dict[str, str]) -> int:
    """Commit a snapshot with the files of `content` (None: no files) on top of the branch; return its id."""
    loaded = catalog.load_table(table.identifier)
    metadata, head = loaded.metadata, loaded.refs()[branch].snapshot_id
    snapshot_id, sequence_number = metadata.new_snapshot_id(), metadata.next_sequence_number()
    path = loaded.location_provider().new_metadata_location(f"snap-{snapshot_id}-0-{uuid.uuid4()}.avro")
    with write_manifest_list(2, loaded.io.new_output(path), snapshot_id, head, sequence_number, "deflate") as manifests:
        manifests.add_manifests(content.manifests(loaded.io) if content else [])
    had = properties_of(content) if content else {}
    totals = {f"total-{what}": had.get(f"total-{what}", "0") for what in TOTALS}
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
