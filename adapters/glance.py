"""A few rows of an embedded lake without PyIceberg, which takes longer to load than an answer may.

Reads what lies in an SQLite catalog and on a disk. Any other lake is `NotHere`, and whoever asks turns to `adapters.lake`, which
gives the same answers. Columns go by their names, which never change. Files whose bounds rule a value out are passed by.
"""

import json
import sqlite3
import struct
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adapters._avro import records
from contracts.lives import ENTRY, Life, lives_of
from contracts.settings import Settings
from contracts.tables import IDS, INSTANT, NAMESPACE, OUTCOMES, SEGMENTS, Table

SQLITE, DISK = "sqlite:///", "file:"
BUSY_SECONDS = 30
READERS = 4  # files that are read at once
_WHERE = "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
_DATA, _DELETED = 0, 2  # Iceberg's numbers: a manifest of data files; an entry of a file that is gone
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NotHere(Exception):
    """This lake, or this table as it is now, has to be read with PyIceberg."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """Wanted: rows with one of these values."""

    values: Collection[Any]

    def may_lie(self, low: Any, high: Any) -> bool:
        """Whether such a row can be among values from `low` to `high`."""
        return any(low <= value <= high for value in self.values)

    def mask(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which rows they are."""
        return pc.is_in(column, value_set=pa.array(list(self.values), column.type))


@dataclass(frozen=True, slots=True)
class Since:
    """Wanted: rows of this instant (UTC) and later."""

    instant: datetime

    def may_lie(self, low: Any, high: Any) -> bool:
        """Whether such a row can be among values from `low` to `high`."""
        del low
        return bool(high >= self.instant)

    def mask(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which rows they are."""
        return pc.greater_equal(column, pa.scalar(self.instant, INSTANT))


def entries_of(settings: Settings, vin: str) -> list[Life]:
    """As `adapters.lake.read_entries`.

    Raises:
        NotHere: this lake has to be read with PyIceberg.
    """
    ids = rows(settings, IDS, ENTRY, "vin", OneOf({vin}))
    outcomes = rows(settings, OUTCOMES, _names(OUTCOMES), "seq", OneOf({row["seq"] for row in ids})) if ids else []
    return lives_of(ids, [row for row in outcomes if row["vin"] == vin])


def batch_of(settings: Settings, request_id: str) -> list[Life]:
    """As `adapters.lake.read_batch`.

    Raises:
        NotHere: this lake has to be read with PyIceberg.
    """
    ids = rows(settings, IDS, ENTRY, "request_id", OneOf({request_id}))
    return lives_of(ids, rows(settings, OUTCOMES, _names(OUTCOMES), "seq", OneOf({row["seq"] for row in ids})) if ids else [])


def segments_since(settings: Settings, since: datetime) -> set[str]:
    """As `adapters.lake.read_segments`.

    Raises:
        NotHere: this lake has to be read with PyIceberg.
    """
    return {row["path"] for row in rows(settings, SEGMENTS, ("path",), "ingested_at", Since(since))}


def rows(settings: Settings, table: Table, columns: tuple[str, ...], key: str, wanted: OneOf | Since) -> list[dict[str, Any]]:
    """The rows of main whose `key` is wanted; none where there is no such table yet.

    Raises:
        NotHere: this lake has to be read with PyIceberg.
    """
    metadata = _metadata(settings, table)
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    snapshot = snapshots.get(metadata.get("current-snapshot-id"))
    if snapshot is None:
        return []
    schema = next(schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"])
    field_id = next(field["id"] for field in schema["fields"] if field["name"] == key)
    kind = next(column.type for column in table.columns if column.name == key)
    files = [file for file in _files(snapshot["manifest-list"]) if _may_hold(file, field_id, kind, wanted)]
    try:
        with ThreadPoolExecutor(READERS, "glance") as pool:
            return list(chain.from_iterable(pool.map(partial(_read, columns, key, wanted), files)))
    except FileNotFoundError as exc:  # cleaned away since the snapshot was looked up: PyIceberg looks it up again
        raise NotHere(str(exc)) from exc


def _metadata(settings: Settings, table: Table) -> dict[str, Any]:
    """The table's current metadata; empty where there is none."""
    if not settings.catalog.startswith(SQLITE):
        raise NotHere(f"the catalog is no {SQLITE} file")
    catalog = Path(settings.catalog.removeprefix(SQLITE).split("?")[0])
    if not catalog.exists():
        return {}
    with closing(sqlite3.connect(catalog, timeout=BUSY_SECONDS)) as connection:
        try:
            found = connection.execute(_WHERE, (settings.catalog_name, NAMESPACE, table.name)).fetchone()
        except sqlite3.Error as exc:  # no tables in it yet, or it is locked: PyIceberg tells which
            raise NotHere(str(exc)) from exc
    metadata: dict[str, Any] = json.loads(_path(found[0]).read_bytes()) if found else {}
    return metadata


def _path(location: str) -> Path:
    """A file by its location: PyIceberg writes `file:///…`, Spark also `file:/…`."""
    if not location.startswith((DISK, "/")) or location.endswith(".gz.metadata.json"):
        raise NotHere(f"{location} is no plain file on a disk")
    return Path("/" + location.removeprefix(DISK).lstrip("/"))


def _files(manifest_list: str) -> Iterator[dict[str, Any]]:
    """The data files of a snapshot, as its manifests describe them."""
    try:
        for manifest in records(_path(manifest_list).read_bytes()):
            if manifest["content"] != _DATA:
                raise NotHere("rows are struck out in files of their own")
            for entry in records(_path(manifest["manifest_path"]).read_bytes()):
                if entry["status"] != _DELETED:
                    yield entry["data_file"]
    except (ValueError, FileNotFoundError) as exc:
        raise NotHere(str(exc)) from exc


def _may_hold(file: dict[str, Any], field_id: int, kind: pa.DataType, wanted: OneOf | Since) -> bool:
    low, high = (_bound(file[name], field_id) for name in ("lower_bounds", "upper_bounds"))
    return low is None or high is None or wanted.may_lie(_value(low, kind), _value(high, kind))


def _bound(bounds: list[dict[str, Any]] | None, field_id: int) -> bytes | None:
    return next((bound["value"] for bound in bounds or () if bound["key"] == field_id), None)


def _value(raw: bytes, kind: pa.DataType) -> Any:
    """A bound, as Iceberg's specification writes single values (appendix D)."""
    if pa.types.is_string(kind):
        return raw.decode(errors="replace")
    (number,) = struct.unpack("<q", raw)
    return _UNIX_EPOCH + timedelta(microseconds=number) if kind == INSTANT else number


def _read(columns: tuple[str, ...], key: str, wanted: OneOf | Since, data: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with pq.ParquetFile(_path(data["file_path"])) as file:
        has = file.schema_arrow.names
        there, missing = [name for name in columns if name in has], {name: None for name in columns if name not in has}
        for group in range(file.metadata.num_row_groups):
            stats = file.metadata.row_group(group).column(has.index(key)).statistics
            if stats is not None and stats.has_min_max and not wanted.may_lie(stats.min, stats.max):
                continue
            mask = wanted.mask(file.read_row_group(group, columns=[key], use_threads=False)[key])
            if pc.any(mask).as_py():
                whole = file.read_row_group(group, columns=there, use_threads=False)
                found += [missing | row for row in whole.filter(mask).to_pylist()]
    return found


def _names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)
