"""Files of archive and warehouse in an erasure: expires snapshots with the vehicle's rows, and searches every file at the end."""

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
from manifold.lake.commits import MAIN, patiently
from manifold.lake.storage import open_storage
from manifold.settings import Settings
from pipelines.erasure.names import OF_QUEUES, Named
from pipelines.erasure.search import matches
from pipelines.ingest.branches import BEGAN, PREFIX, REPEAT, close_run, drop_branch
from pipelines.ingest.publish import pins_in, unfinished
from pipelines.ingest.rebase import is_change_of

ROW_BATCH_SIZE = 50_000
_SINCE = ("seq", "first_seen_at")  # columns that tell when a row came
_AVRO = re.compile(rb"Obj\x01")
_SYNC = 16  # bytes of the mark between an Avro file's blocks


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A place in which the vehicle is still named."""

    where: str  # a file, or a key of Redis
    what: str  # the column, or what kind of place it is
    count: int = 1


def expire(catalog: Catalog, published: int, now: datetime) -> int:
    """Let go of every snapshot that nobody needs, and of the branches of runs that began before one that counts; how many.

    `published` is the snapshot of `ingested_segments` with which that run counts: whoever did not begin from it, or from a later
    one, can no more be published. Of main's history stays what leads to the changes of runs that may still have to be finished.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    for branch, ref in segments.refs().items():
        if branch.startswith(PREFIX) and published not in _line(segments, ref.snapshot_id):
            close_run(catalog, branch)
    before_ms = round(now.timestamp() * 1000)
    for table in run_tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        for name, ref in loaded.refs().items():
            head = loaded.snapshot_by_id(ref.snapshot_id)
            if name.startswith(REPEAT) and head is not None and head.timestamp_ms < before_ms:
                drop_branch(catalog, table, name)  # of whoever was killed
            elif name.startswith(PREFIX) and BEGAN + name not in catalog.load_table(SEGMENTS.identifier).properties:
                drop_branch(catalog, table, name)  # of a run that went on to write after it was closed
    # `ingested_segments` names no vehicle, and its history tells which runs count.
    return sum(_expire(catalog, table) for table in tables_of(catalog) if table is not SEGMENTS)


@patiently
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
    wanted = (p for p, s in enumerate(main) if any(is_change_of(_snapshot(loaded, s), pin) for pin in needed))
    staying = set(main[: max(wanted, default=0) + 1])
    for line in heads.values():  # of a run: what it has written, and what it began from
        base = next((place for place, snapshot_id in enumerate(line) if snapshot_id in main), 0)
        staying.update(line[: base + 1])
    old = [snapshot.snapshot_id for snapshot in loaded.snapshots() if snapshot.snapshot_id not in staying]
    if old:
        loaded.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)


def _snapshot(table: IcebergTable, snapshot_id: int) -> Snapshot:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # it is in a line of the table's own
    return snapshot


def _line(table: IcebergTable, head: int) -> list[int]:
    """A snapshot and those before it, as far back as they are kept."""
    line: list[int] = []
    snapshot = table.snapshot_by_id(head)
    while snapshot is not None:
        line.append(snapshot.snapshot_id)
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
    return line


def remove_unknown(catalog: Catalog, settings: Settings, named: Named) -> int:
    """Remove the files in the tables' folders that no snapshot knows and that name the vehicle; how many.

    Others stay: they may belong to somebody who is about to commit. What names the vehicle cannot: whoever replaces a file that
    was erased from is refused, and whoever began before the erasure is overtaken.
    """
    removed = 0
    for table in tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        known, filesystem = _known(loaded), None
        for filesystem, path, address in _files(loaded.location(), settings):
            if address not in known and any(True for _ in search(filesystem, path, named)):
                filesystem.delete_file(path)
                removed += 1
    return removed


def _known(table: IcebergTable) -> set[str]:
    """The names of all files that a snapshot knows."""
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
    """Without scheme: engines write one, two, or no slashes after it."""
    return re.sub(r"^\w+:/*", "", address).lstrip("/")


def _files(url: str, settings: Settings) -> Iterator[tuple[fs.FileSystem, str, str]]:
    """Every file below: its file system, its path there, and the name by which tables know it."""
    address = url if "://" in url else f"file://{re.sub(r'^file:', '', url)}"
    filesystem, root = open_storage(address, settings.s3)
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        if info.type == fs.FileType.File:
            yield filesystem, info.path, _plain(info.path)


def prove(catalog: Catalog, settings: Settings, named: Named) -> tuple[list[Found], int]:
    """Where files of the warehouse and of the tables' folders name the vehicle, whoever knows them; how many were searched."""
    folders = [catalog.load_table(table.identifier).location() for table in tables_of(catalog)]
    if "://" in settings.warehouse_url:  # else only the catalog knows where it is
        folders.append(settings.warehouse_url)
    found: list[Found] = []
    searched: set[str] = set()
    for filesystem, path, name in (file for folder in folders for file in _files(folder, settings)):
        if name not in searched:
            searched.add(name)
            with contextlib.suppress(FileNotFoundError):  # expired meanwhile
                found += search(filesystem, path, named)
    return found, len(searched)


def search(filesystem: fs.FileSystem, path: str, named: Named) -> Iterator[Found]:
    """Where a file names the vehicle: by its columns, by its blocks, or by its bytes."""
    if path.endswith(".parquet"):
        with filesystem.open_input_file(path) as file:
            try:
                yield from _in_parquet(file, path, named)
                return
            except (pa.ArrowException, OSError):
                pass  # torn: its writer was killed
    elif not named.opaque and (f"/{DATA.name}/" in path or f"/{ECQ_PAYLOAD.name}/" in path or f"/{XRAY_RAW.name}/" in path):
        return  # bounds of payloads, in which so short a name is found by chance
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
            if named.anew(row):
                continue
            for column in columns:
                if row[column] is not None and named.is_in(row[column]):
                    counts[column] = counts.get(column, 0) + 1
    yield from (Found(path, column, count) for column, count in sorted(counts.items()))


def _blocks(content: bytes) -> Iterator[bytes]:
    """The bytes of a file; of an Avro file, its head and its blocks as they were before they were packed.

    Packed bytes and the marks between the blocks are as good as random: a name of two characters is found there by chance.
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
        except zlib.error:  # not packed
            yield block
        place += size + _SYNC


def _long(content: bytes, place: int) -> tuple[int, int]:
    """A number as Avro has it, and where it ends."""
    number, shift = 0, 0
    while True:
        byte = content[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), place
