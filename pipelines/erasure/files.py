"""Expires snapshots with the vehicle's rows, and finally searches every file of the tables and the warehouse for its name."""

import contextlib
import re
import zlib
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
from pipelines.erasure.names import OF_QUEUES, Named
from pipelines.erasure.search import matches
from pipelines.ingest.branches import BEGAN, PREFIX, REPEAT, drop_branch, drop_branches
from pipelines.ingest.publish import pins_in, unfinished
from pipelines.ingest.rebase import is_change_of

ROW_BATCH_SIZE = 50_000
_SINCE = ("seq", "first_seen_at")  # columns that tell when a row arrived
_AVRO = re.compile(rb"Obj\x01")
_SYNC = 16  # bytes of the sync marker between an Avro file's blocks


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A place that still names the vehicle."""

    where: str  # a file, or a Redis key
    what: str  # the column, or the kind of place
    count: int = 1


def expire(catalog: Catalog, published: int, now: datetime) -> int:
    """Expire unneeded snapshots, and drop branches of runs that began before the erasure; return the number of snapshots.

    `published` is the snapshot of `ingested_segments` by which the erasure is committed: a run not based on it, or on a later
    one, can no longer be published. Main keeps the history that leads to the changes of runs that may have to be finished.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    for branch, ref in segments.refs().items():
        if branch.startswith(PREFIX) and published not in _line(segments, ref.snapshot_id):
            drop_branches(catalog, branch)
    before_ms = round(now.timestamp() * 1000)
    for table in run_tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        for name, ref in loaded.refs().items():
            head = loaded.snapshot_by_id(ref.snapshot_id)
            if name.startswith(REPEAT) and head is not None and head.timestamp_ms < before_ms:
                drop_branch(catalog, table, name)  # left by a killed process
            elif name.startswith(PREFIX) and BEGAN + name not in catalog.load_table(SEGMENTS.identifier).properties:
                drop_branch(catalog, table, name)  # of a run that was closed while it was still being written
    # `ingested_segments` names no vehicle, and its history tells which runs are committed.
    return sum(_expire(catalog, table) for table in tables_of(catalog) if table is not SEGMENTS)


@retry_conflicts
def _expire(catalog: Catalog, table: Table) -> int:
    needed = {
        pinned.snapshot_id
        for run in unfinished(catalog.load_table(SEGMENTS.identifier))
        for pinned in pins_in(run)
        if pinned.table is table
    }
    loaded = catalog.load_table(table.identifier)
    heads = {name: _line(loaded, ref.snapshot_id) for name, ref in loaded.refs().items()}
    main = heads.pop(MAIN)
    snapshots = (_snapshot(loaded, snapshot_id) for snapshot_id in main)
    wanted = (place for place, snapshot in enumerate(snapshots) if any(is_change_of(snapshot, pin) for pin in needed))
    staying = set(main[: max(wanted, default=0) + 1])
    for line in heads.values():  # the branch of a run keeps the run's own snapshots and its base
        base = next((place for place, snapshot_id in enumerate(line) if snapshot_id in main), 0)
        staying.update(line[: base + 1])
    old = [snapshot.snapshot_id for snapshot in loaded.snapshots() if snapshot.snapshot_id not in staying]
    if old:
        loaded.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)


def _snapshot(table: IcebergTable, snapshot_id: int) -> Snapshot:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # it is in the table's own history
    return snapshot


def _line(table: IcebergTable, head: int) -> list[int]:
    """The ids of a snapshot and its ancestors, newest first, as far back as they are kept."""
    line: list[int] = []
    snapshot = table.snapshot_by_id(head)
    while snapshot is not None:
        line.append(snapshot.snapshot_id)
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
    return line


def remove_unknown(catalog: Catalog, settings: Settings, named: Named) -> int:
    """Remove files in the tables' folders that no snapshot references and that name the vehicle; return how many.

    Other unreferenced files stay: they may belong to a process that is about to commit. No process can still commit a file that
    names the vehicle: a commit that replaces a rewritten file is refused, and a run that began before the erasure is overtaken.
    """
    removed = 0
    for table in tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        known = _referenced_files(loaded)
        for filesystem, path, address in _files(loaded.location(), settings):
            if address not in known and next(search(filesystem, path, named), None) is not None:
                filesystem.delete_file(path)
                removed += 1
    return removed


def _referenced_files(table: IcebergTable) -> set[str]:
    """The names of all files that the table's metadata references."""
    known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    manifests: dict[str, Any] = {}
    for snapshot in table.snapshots():
        known.add(snapshot.manifest_list)
        manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)})
    for path, manifest in manifests.items():
        known.add(path)
        known.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True))
    return {_plain(path) for path in known}


def _plain(address: str) -> str:
    """The address without its scheme: engines write one, two, or no slashes after it."""
    return re.sub(r"^\w+:/*", "", address).lstrip("/")


def _files(url: str, settings: Settings) -> Iterator[tuple[fs.FileSystem, str, str]]:
    """Yield every file under `url`: its file system, its path there, and the name by which tables know it."""
    address = url if "://" in url else f"file://{re.sub(r'^file:', '', url)}"
    filesystem, root = open_storage(address, settings.s3)
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        if info.type == fs.FileType.File:
            yield filesystem, info.path, _plain(info.path)


def prove(catalog: Catalog, settings: Settings, named: Named) -> tuple[list[Found], int]:
    """Find where files of the warehouse and the tables' folders name the vehicle; also return how many were searched."""
    folders = [catalog.load_table(table.identifier).location() for table in tables_of(catalog)]
    if "://" in settings.warehouse_url:  # otherwise only the catalog knows where it is
        folders.append(settings.warehouse_url)
    found: list[Found] = []
    searched: set[str] = set()
    for filesystem, path, name in (file for folder in folders for file in _files(folder, settings)):
        if name not in searched:
            searched.add(name)
            with contextlib.suppress(FileNotFoundError):  # expired in the meantime
                found += search(filesystem, path, named)
    return found, len(searched)


def search(filesystem: fs.FileSystem, path: str, named: Named) -> Iterator[Found]:
    """Yield where a file names the vehicle: by its columns, its blocks, or its bytes."""
    if path.endswith(".parquet"):
        with filesystem.open_input_file(path) as file:
            try:
                yield from _in_parquet(file, path, named)
                return
            except (pa.ArrowException, OSError):
                pass  # torn: its writer was killed
    elif not named.opaque and (f"/{DATA.name}/" in path or f"/{ECQ_PAYLOAD.name}/" in path or f"/{XRAY_RAW.name}/" in path):
        return  # column bounds of payloads, in which so short a name is found by chance
    with filesystem.open_input_stream(path, compression=None) as stream:
        content = bytes(stream.read())
    for block in _blocks(content):
        if named.is_in(block):
            yield Found(path, "bytes")
            return


def _in_parquet(file: pa.NativeFile, path: str, named: Named) -> Iterator[Found]:
    whole = pq.ParquetFile(file)
    texts = [f.name for f in whole.schema_arrow if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]
    columns = [c for c in texts if c != "payload" or named.opaque or "topic" in texts]
    since = (*_SINCE, *OF_QUEUES) if "client_id" in texts else _SINCE
    counts: dict[str, int] = {}
    for batch in whole.iter_batches(
        ROW_BATCH_SIZE, columns=[*columns, *(name for name in since if name in whole.schema_arrow.names)]
    ):
        rows = pa.Table.from_batches([batch])
        for row in matches(rows, named, tuple(columns)):
            if named.is_newer(row):
                continue
            for column in columns:
                if row[column] is not None and named.is_in(row[column]):
                    counts[column] = counts.get(column, 0) + 1
    yield from (Found(path, column, count) for column, count in sorted(counts.items()))


def _blocks(content: bytes) -> Iterator[bytes]:
    """The bytes of a file; for an Avro file, its header and its decompressed blocks.

    Compressed bytes and sync markers are as good as random: a name of two characters is found there by chance.
    """
    if not _AVRO.match(content):
        yield content
        return
    head, entries = 4, -1
    while entries:
        entries, head = _long(content, head)
        if entries < 0:
            entries, (_, head) = -entries, _long(content, head)
        for _ in range(2 * entries):
            size, head = _long(content, head)
            head += size
    yield content[:head]
    place = head + _SYNC
    while place < len(content):
        _, place = _long(content, place)
        size, place = _long(content, place)
        block = content[place : place + size]
        try:
            yield zlib.decompress(block, wbits=-zlib.MAX_WBITS)
        except zlib.error:  # not compressed
            yield block
        place += size + _SYNC


def _long(content: bytes, place: int) -> tuple[int, int]:
    """Decode an Avro long; return it and the offset after it."""
    number, shift = 0, 0
    while True:
        byte = content[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), place
