"""Reads a table's files from its manifests, without Spark, which need not be started if there is nothing to do."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import Table
from pipelines.maintenance.compact_plan import CompactionPolicy, Group

EPOCH_DAY = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """Files of a table at one moment, counted by kind."""

    files: int
    small_files: int
    sorted_files: int
    bytes: int
    delete_files: int
    manifests: int


def discover(catalog: Catalog, table: Table, policy: CompactionPolicy, order_id: int) -> tuple[list[Group], Shape]:
    """Group and count main's files; a file is sorted if it carries `order_id` (0: none is)."""
    loaded = catalog.load_table(table.identifier)
    snapshot = loaded.current_snapshot()
    manifests = snapshot.manifests(loaded.io) if snapshot else []
    days = {number: _place_of_day(spec, table) for number, spec in loaded.specs().items()}
    files, sizes = Counter[tuple[date | None, bool, bool]](), Counter[tuple[date | None, bool, bool]]()
    for file in _data_files(loaded, manifests):
        day = _day(file, days.get(file.spec_id))
        kind = (day, bool(order_id) and file.sort_order_id == order_id, file.file_size_in_bytes < policy.small_bytes)
        files[kind] += 1
        sizes[kind] += file.file_size_in_bytes
    groups = [Group(*kind, count, sizes[kind]) for kind, count in files.items()]
    shape = Shape(
        files=sum(g.files for g in groups),
        small_files=sum(g.files for g in groups if g.is_small),
        sorted_files=sum(g.files for g in groups if g.is_sorted),
        bytes=sum(g.bytes for g in groups),
        delete_files=sum(_living(m) for m in manifests if m.content == ManifestContent.DELETES),
        manifests=len(manifests),
    )
    return groups, shape


def _data_files(loaded: IcebergTable, manifests: list[ManifestFile]) -> Iterator[DataFile]:
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            yield from (entry.data_file for entry in manifest.fetch_manifest_entry(loaded.io, discard_deleted=True))


def _place_of_day(spec: PartitionSpec, table: Table) -> int | None:
    """The index of the day in a file's partition; None for a spec from before the table had days."""
    names = [field.name for field in spec.fields]
    return names.index(f"{table.day_of}_day") if f"{table.day_of}_day" in names else None


def _day(file: DataFile, place: int | None) -> date | None:
    """The day of the file's partition, which Iceberg counts from 1970."""
    value = file.partition[place] if place is not None else None
    return EPOCH_DAY + timedelta(days=value) if isinstance(value, int) else value


def _living(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
