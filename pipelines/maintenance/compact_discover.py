"""Reads a table's files from its manifests. It needs no Spark, so Spark is not started if nothing is to be compacted."""

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
    """Return main's data files in groups, and their counts. A file is sorted if its sort order is `order_id` (0: no order)."""
    loaded = catalog.load_table(table.identifier)
    snapshot = loaded.current_snapshot()
    manifests = snapshot.manifests(loaded.io) if snapshot else []
    day_index_of_spec = {spec_id: _index_of_day(spec, table) for spec_id, spec in loaded.specs().items()}
    counts = Counter[tuple[date | None, bool, bool]]()  # of files, by (day, is sorted, is small)
    sizes = Counter[tuple[date | None, bool, bool]]()
    for file in _data_files(loaded, manifests):
        day = _day(file, day_index_of_spec.get(file.spec_id))
        is_sorted = bool(order_id) and file.sort_order_id == order_id
        is_small = file.file_size_in_bytes < policy.small_bytes
        counts[day, is_sorted, is_small] += 1
        sizes[day, is_sorted, is_small] += file.file_size_in_bytes
    groups = [
        Group(day, is_sorted, is_small, count, sizes[day, is_sorted, is_small])
        for (day, is_sorted, is_small), count in counts.items()
    ]
    delete_manifests = [manifest for manifest in manifests if manifest.content == ManifestContent.DELETES]
    shape = Shape(
        files=sum(group.files for group in groups),
        small_files=sum(group.files for group in groups if group.is_small),
        sorted_files=sum(group.files for group in groups if group.is_sorted),
        bytes=sum(group.bytes for group in groups),
        delete_files=sum(_live_files(manifest) for manifest in delete_manifests),
        manifests=len(manifests),
    )
    return groups, shape


def _data_files(loaded: IcebergTable, manifests: list[ManifestFile]) -> Iterator[DataFile]:
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            yield from (entry.data_file for entry in manifest.fetch_manifest_entry(loaded.io, discard_deleted=True))


def _index_of_day(spec: PartitionSpec, table: Table) -> int | None:
    """The index of the day among the partition fields; None if the spec is older than the table's partitions by day."""
    names = [field.name for field in spec.fields]
    day_field = f"{table.day_of}_day"
    return names.index(day_field) if day_field in names else None


def _day(file: DataFile, day_index: int | None) -> date | None:
    """The day of the file's partition, at this index of its fields; None if it has no day."""
    if day_index is None:
        return None
    day = file.partition[day_index]  # a date, or the number of days since 1970
    return EPOCH_DAY + timedelta(days=day) if isinstance(day, int) else day


def _live_files(manifest: ManifestFile) -> int:
    """The number of files in the manifest that are not deleted."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
