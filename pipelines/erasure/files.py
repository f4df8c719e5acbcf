"""Expires the snapshots that have the vehicle's rows, and searches every file of tables and warehouse for its name."""

import contextlib
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.tables import DATA, ECQ_PAYLOAD, SEGMENTS, XRAY_RAW, Table
from manifold.lake.catalog import run_tables_of, tables_of
from manifold.lake.commits import MAIN, retry_conflicts
from manifold.lake.storage import open_storage
from manifold.settings import Settings
from pipelines.erasure.names import OF_QUEUES, ErasedVehicle
from pipelines.erasure.search import rows_naming
from pipelines.ingest.branches import BEGAN, PREFIX, REPEAT, drop_branch, drop_branches, pins_in
from pipelines.ingest.publish import unfinished
from pipelines.ingest.rebase import is_change_of

ROW_BATCH_SIZE = 50_000
_ARRIVAL_COLUMNS = ("seq", "first_seen_at")  # tell when a row arrived
_AVRO_MAGIC = re.compile(rb"Obj\x01")
_SYNC_MARKER_SIZE = 16  # bytes of the marker after each block of an Avro file


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A place that still names the vehicle."""

    where: str  # a file, or a Redis key
    what: str  # the column of the file, or the kind of content
    count: int = 1  # number of rows or members that name the vehicle


def expire_snapshots(catalog: Catalog, erasure_snapshot_id: int, now: datetime) -> int:
    """Expire unneeded snapshots, and drop branches of runs that began before the erasure. Return the number of snapshots.

    `erasure_snapshot_id` names the snapshot of `ingested_segments` by which the erasure is committed. A run that began before
    this snapshot can no longer be published, so its branches are dropped. On main, the history stays down to the changes of runs
    that may have to be finished.

    `now` is when this pass of the erasure began: temporary branches of rebases that have not changed since are dropped, too.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    for branch, ref in segments.refs().items():
        if not branch.startswith(PREFIX):
            continue
        began_before_erasure = erasure_snapshot_id not in _history(segments, ref.snapshot_id)
        if began_before_erasure:
            drop_branches(catalog, branch)
    before_ms = round(now.timestamp() * 1000)
    for table in run_tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        for name, ref in loaded.refs().items():
            head = loaded.snapshot_by_id(ref.snapshot_id)
            if name.startswith(REPEAT) and head is not None and head.timestamp_ms < before_ms:
                drop_branch(catalog, table, name)  # a killed process has left it
            elif name.startswith(PREFIX) and BEGAN + name not in catalog.load_table(SEGMENTS.identifier).properties:
                drop_branch(catalog, table, name)  # its run was closed while a process was still writing to the branch
    # The ledger is left out: it names no vehicle, and its history tells which runs are committed.
    return sum(_expire_snapshots_of(catalog, table) for table in tables_of(catalog) if table is not SEGMENTS)


@retry_conflicts
def _expire_snapshots_of(catalog: Catalog, table: Table) -> int:
    """Expire the snapshots of one table that are not needed; return their number."""
    unfinished_ids = {
        pinned.snapshot_id
        for run in unfinished(catalog.load_table(SEGMENTS.identifier))
        for pinned in pins_in(run)
        if pinned.table is table
    }
    loaded = catalog.load_table(table.identifier)
    history_of_branch = {name: _history(loaded, ref.snapshot_id) for name, ref in loaded.refs().items()}
    main = history_of_branch.pop(MAIN)
    oldest_staying = 0  # index in `main`: the newest snapshot, or the oldest with the changes of an unfinished run
    for index, snapshot_id in enumerate(main):
        snapshot = _snapshot(loaded, snapshot_id)
        if any(is_change_of(snapshot, unfinished_id) for unfinished_id in unfinished_ids):
            oldest_staying = index
    staying = set(main[: oldest_staying + 1])
    for history in history_of_branch.values():
        staying.update(_needed_by_branch(history, main))
    old = [snapshot.snapshot_id for snapshot in loaded.snapshots() if snapshot.snapshot_id not in staying]
    if old:
        loaded.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)


def _needed_by_branch(history: list[int], main: list[int]) -> list[int]:
    """The snapshots that a branch with this history keeps: those of its run, and the snapshot of main on which the run began.

    If the branch and `main` have no snapshot in common, only the head is kept.
    """
    for index, snapshot_id in enumerate(history):
        if snapshot_id in main:
            return history[: index + 1]
    return history[:1]


def _snapshot(table: IcebergTable, snapshot_id: int) -> Snapshot:
    """The snapshot with this id, which the table must have."""
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # it is in the table's own history
    return snapshot


def _history(table: IcebergTable, head: int) -> list[int]:
    """The ids of a snapshot and its ancestors, newest first, as far back as they are kept."""
    history: list[int] = []
    snapshot = table.snapshot_by_id(head)
    while snapshot is not None:
        history.append(snapshot.snapshot_id)
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
    return history


def remove_unreferenced(catalog: Catalog, settings: Settings, vehicle: ErasedVehicle) -> int:
    """Remove the files in the tables' folders that name the vehicle and that no snapshot references. Return their number.

    Other unreferenced files stay, because they may belong to a process that is about to commit. No process can still commit
    a file that names the vehicle: a commit that replaces a rewritten file is refused, and a run that began before the erasure is
    overtaken.
    """
    removed = 0
    for table in tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        referenced = _referenced_files(loaded)
        for filesystem, path, name in _files(loaded.location(), settings):
            if name in referenced:
                continue
            names_vehicle = next(find_in_file(filesystem, path, vehicle), None) is not None
            if names_vehicle:
                filesystem.delete_file(path)
                removed += 1
    return removed


def _referenced_files(table: IcebergTable) -> set[str]:
    """The names (as `_without_scheme` writes them) of all files that the table's metadata references."""
    addresses = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    manifests: dict[str, Any] = {}
    for snapshot in table.snapshots():
        addresses.add(snapshot.manifest_list)
        manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)})
    for path, manifest in manifests.items():
        addresses.add(path)
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        addresses.update(entry.data_file.file_path for entry in entries)
    return {_without_scheme(address) for address in addresses}


def _without_scheme(address: str) -> str:
    """Remove the scheme and all leading slashes, so that addresses are comparable: engines write none to three slashes."""
    return re.sub(r"^\w+:/*", "", address).lstrip("/")


def _files(url: str, settings: Settings) -> Iterator[tuple[fs.FileSystem, str, str]]:
    """Yield (file system, path, name) of every file under `url`. The name is the path as `_without_scheme` writes it."""
    address = url if "://" in url else f"file://{re.sub(r'^file:', '', url)}"
    filesystem, root = open_storage(address, settings.s3)
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        if info.type == fs.FileType.File:
            yield filesystem, info.path, _without_scheme(info.path)


def find_in_files(catalog: Catalog, settings: Settings, vehicle: ErasedVehicle) -> tuple[list[Found], int]:
    """Search all files of the warehouse and of the tables' folders for the name of the vehicle.

    Return the places that name the vehicle, and the number of files searched.
    """
    folders = [catalog.load_table(table.identifier).location() for table in tables_of(catalog)]
    if "://" in settings.warehouse_url:  # otherwise, only the catalog knows where the warehouse is
        folders.append(settings.warehouse_url)
    found: list[Found] = []
    searched: set[str] = set()
    for folder in folders:
        for filesystem, path, name in _files(folder, settings):
            if name in searched:  # the tables' folders may be in the warehouse
                continue
            searched.add(name)
            with contextlib.suppress(FileNotFoundError):  # the file has been removed since it was listed
                found += find_in_file(filesystem, path, vehicle)
    return found, len(searched)


def find_in_file(filesystem: fs.FileSystem, path: str, vehicle: ErasedVehicle) -> Iterator[Found]:
    """Yield the places in a file that name the vehicle: columns of a Parquet file, or any other file as a whole."""
    if path.endswith(".parquet"):
        with filesystem.open_input_file(path) as file:
            try:
                yield from _in_parquet(file, path, vehicle)
                return
            except (pa.ArrowException, OSError):
                pass  # incomplete, because its writer was killed: its bytes are searched below
    elif not vehicle.is_searched_in_opaque and any(f"/{table.name}/" in path for table in (DATA, ECQ_PAYLOAD, XRAY_RAW)):
        return  # manifests of these tables have bounds of payloads, in which a short name would be found by chance
    with filesystem.open_input_stream(path, compression=None) as stream:
        content = bytes(stream.read())
    for block in _blocks(content):
        if vehicle.is_named_in(block):
            yield Found(path, "bytes")
            return  # one place in the file is enough


def _in_parquet(file: pa.NativeFile, path: str, vehicle: ErasedVehicle) -> Iterator[Found]:
    """Yield each column in which rows that arrived before the erasure name the vehicle."""
    parquet = pq.ParquetFile(file)
    schema = parquet.schema_arrow
    text_columns = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
    # In a payload of any bytes, a short name would be found by chance. A file with topics is of quarantine: its payloads are
    # whole messages, and are searched for every name.
    searches_payloads = vehicle.is_searched_in_opaque or "topic" in text_columns
    columns = [column for column in text_columns if column != "payload" or searches_payloads]
    is_of_queues = "client_id" in text_columns  # compacted queues
    arrival_columns = (*_ARRIVAL_COLUMNS, *OF_QUEUES) if is_of_queues else _ARRIVAL_COLUMNS
    existing_arrival_columns = [name for name in arrival_columns if name in schema.names]
    counts: Counter[str] = Counter()
    for batch in parquet.iter_batches(ROW_BATCH_SIZE, columns=[*columns, *existing_arrival_columns]):
        rows = pa.Table.from_batches([batch])
        for row in rows_naming(rows, vehicle, tuple(columns)):
            if vehicle.is_accepted_later(row):
                continue
            counts.update(column for column in columns if row[column] is not None and vehicle.is_named_in(row[column]))
    for column, count in sorted(counts.items()):
        yield Found(path, column, count)


def _blocks(content: bytes) -> Iterator[bytes]:
    """Yield the bytes of a file to search: of an Avro file, its header and its decompressed blocks; of another file, all bytes.

    Compressed bytes and sync markers of an Avro file are left out, because a name of two characters may be there by chance.
    """
    if not _AVRO_MAGIC.match(content):
        yield content
        return
    header_end = _end_of_avro_header(content)
    yield content[:header_end]
    offset = header_end + _SYNC_MARKER_SIZE
    while offset < len(content):
        _, offset = _avro_long(content, offset)  # number of objects in the block
        size, offset = _avro_long(content, offset)
        block = content[offset : offset + size]
        try:
            yield zlib.decompress(block, wbits=-zlib.MAX_WBITS)
        except zlib.error:  # not compressed
            yield block
        offset += size + _SYNC_MARKER_SIZE


def _end_of_avro_header(content: bytes) -> int:
    """The offset after the header's metadata, at which the first sync marker begins.

    The metadata is a map: groups of pairs, each after its number of pairs, until a group of no pairs.
    """
    offset = 4  # after the magic bytes
    while True:
        pairs, offset = _avro_long(content, offset)
        if pairs == 0:
            return offset
        if pairs < 0:  # then the size of the group in bytes follows
            pairs = -pairs
            _, offset = _avro_long(content, offset)
        for _ in range(2 * pairs):  # a key or a value: its size, then its bytes
            size, offset = _avro_long(content, offset)
            offset += size


def _avro_long(content: bytes, offset: int) -> tuple[int, int]:
    """Decode an Avro long (variable-length, zigzag); return it, and the offset after it."""
    number = 0
    shift = 0
    while True:
        byte = content[offset]
        number |= (byte & 0x7F) << shift
        offset += 1
        shift += 7
        is_last = not byte & 0x80
        if is_last:
            return (number >> 1) ^ -(number & 1), offset
