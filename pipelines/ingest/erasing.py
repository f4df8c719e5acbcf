"""Erases a vehicle's rows from the tables: snapshots whose files and manifests do not name it.

A removal as engines write it keeps the bounds of old files in the new manifests, as deleted entries, and a bound may be the
name itself. So the manifests of these snapshots list only the remaining files, and all earlier snapshots have to be expired.
"""

import secrets
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

from manifold.contracts.tables import Table
from manifold.lake.catalog import where
from manifold.lake.commits import patiently
from manifold.lake.compat import write_data_files
from pipelines.ingest.branches import properties_of
from pipelines.ingest.contents import TOTALS


@patiently
def erase_rows(catalog: Catalog, table: Table, keys: pa.Table, branch: str, properties: dict[str, str]) -> int:
    """One snapshot on the branch without the rows whose values are among `keys`; its id."""
    loaded = catalog.load_table(table.identifier)
    head = loaded.refs()[branch].snapshot_id
    return put(catalog, loaded, branch, dict(changed(loaded, head, keys)), properties)


def read(table: IcebergTable, task: FileScanTask, columns: tuple[str, ...]) -> pa.Table:
    """These columns of one file's rows."""
    return (
        ArrowScan(table.metadata, table.io, table.schema().select(*columns), AlwaysTrue()).to_table([task]).select(list(columns))
    )


def changed(table: IcebergTable, head: int, keys: pa.Table) -> Iterator[tuple[str, tuple[DataFile, pa.Table]]]:
    """By path, the files of a snapshot that have such rows, each with its other rows."""
    columns = tuple(keys.column_names)
    for task in table.scan(_within(keys), snapshot_id=head).plan_files():
        if pc.any(_among(read(table, task, columns), keys)).as_py():
            rows = read(table, task, tuple(field.name for field in table.schema().fields))
            yield task.file.file_path, (task.file, rows.filter(pc.invert(_among(rows, keys))))


def _within(keys: pa.Table) -> BooleanExpression:
    """What files' own statistics can say."""
    if keys.num_rows and "vin" in keys.column_names:
        return where(EqualTo, "vin", keys["vin"][0].as_py())  # one vehicle's
    return AlwaysTrue()


def _among(rows: pa.Table, keys: pa.Table) -> pa.Array:
    def joined(table: pa.Table) -> pa.ChunkedArray:
        texts = [pc.cast(table[c], pa.large_string()) for c in keys.column_names]
        return pc.binary_join_element_wise(*texts, pa.scalar("\n", pa.large_string())) if len(texts) > 1 else texts[0]

    return pc.is_in(joined(rows), value_set=joined(keys).combine_chunks() if keys.num_rows else pa.array([], pa.large_string()))


def put(
    catalog: Catalog, table: IcebergTable, branch: str, changes: dict[str, tuple[DataFile, pa.Table]], properties: dict[str, str]
) -> int:
    """A snapshot on the branch in which other rows stand for some files; of these, nothing is left in it."""
    metadata, head = table.metadata, table.refs()[branch].snapshot_id
    parent = table.snapshot_by_id(head)
    assert parent is not None  # the head of a branch
    snapshot_id, sequence_number = metadata.new_snapshot_id(), metadata.next_sequence_number()
    made = [file for _, rows in changes.values() if rows.num_rows for file in write_data_files(metadata, rows, table.io)]
    manifests = [m for manifest in parent.manifests(table.io) for m in _manifest_without(table, manifest, changes, snapshot_id)]
    if made:
        with _writer(table, metadata.default_spec_id, snapshot_id) as writer:
            for file in made:
                writer.add(_entry(ManifestEntryStatus.ADDED, snapshot_id, file))
        manifests.append(writer.to_manifest_file())
    path = table.location_provider().new_metadata_location(f"snap-{snapshot_id}-0-{secrets.token_hex(8)}.avro")
    with write_manifest_list(2, table.io.new_output(path), snapshot_id, head, sequence_number, "deflate") as listed:
        listed.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=head,
        sequence_number=sequence_number,
        manifest_list=path,
        summary=Summary(Operation.OVERWRITE, **_totals(parent, changes, made), **properties),
        schema_id=metadata.current_schema_id,
    )
    move = SetSnapshotRefUpdate.model_validate({"ref-name": branch, "type": "branch", "snapshot-id": snapshot_id})
    guards = (AssertTableUUID(uuid=metadata.table_uuid), AssertRefSnapshotId(ref=branch, snapshot_id=head))
    catalog.commit_table(table, guards, (AddSnapshotUpdate(snapshot=snapshot), move))
    return snapshot_id


def _manifest_without(
    table: IcebergTable, manifest: ManifestFile, changes: dict[str, tuple[DataFile, pa.Table]], snapshot_id: int
) -> Iterator[ManifestFile]:
    """The manifest itself, if nothing in it is to go and nothing went before; else one with what is left, if anything is."""
    if manifest.content != ManifestContent.DATA:
        yield manifest
        return
    live = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    left = [entry for entry in live if entry.data_file.file_path not in changes]
    if len(left) == len(live) and not manifest.deleted_files_count:
        yield manifest
    elif left:
        with _writer(table, manifest.partition_spec_id, snapshot_id) as writer:
            for entry in left:
                writer.existing(entry)
        yield writer.to_manifest_file()


def _writer(table: IcebergTable, spec_id: int, snapshot_id: int):  # type: ignore[no-untyped-def]  # PyIceberg's own, of the version
    path = table.location_provider().new_metadata_location(f"{secrets.token_hex(16)}-m0.avro")
    spec = table.specs()[spec_id]
    return write_manifest(2, spec, table.schema(), table.io.new_output(path), snapshot_id, "deflate")


def _entry(status: ManifestEntryStatus, snapshot_id: int, file: DataFile) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status, snapshot_id=snapshot_id, sequence_number=None, file_sequence_number=None, data_file=file
    )


def _totals(parent: Snapshot, changes: dict[str, tuple[DataFile, pa.Table]], made: list[DataFile]) -> dict[str, str]:
    had = properties_of(parent)
    gone = [file for file, _ in changes.values()]
    more = {
        "data-files": len(made) - len(gone),
        "records": sum(f.record_count for f in made) - sum(f.record_count for f in gone),
        "files-size": sum(f.file_size_in_bytes for f in made) - sum(f.file_size_in_bytes for f in gone),
    }
    return {f"total-{what}": str(max(0, int(had.get(f"total-{what}", "0")) + more.get(what, 0))) for what in TOTALS}
