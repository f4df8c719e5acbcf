"""The lake from plain Python: open the catalog, make the tables, read a little. Needs no Spark."""

import sqlite3
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThan, LiteralPredicate
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import DayTransform
from pyiceberg.types import BinaryType, BooleanType, IcebergType, IntegerType, LongType, NestedField, StringType, TimestamptzType
from sqlalchemy.exc import DatabaseError
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from contracts.lives import Life
from contracts.outcomes import State
from contracts.seq import datetime_of
from contracts.settings import Settings
from contracts.tables import COMMON_PROPERTIES, DATA, IDS, INSTANT, NAMESPACE, OUTCOMES, SEGMENTS, TABLES, Table

SQLITE = "sqlite:///"
BUSY_SECONDS = 30  # how long a writer waits for another one's lock on the SQLite file
ENTRY = ("vin", "seq", "request_id", "data_id")
ENDED = ("dispatched_at", "acknowledged_at", "ended_at", "attempts", "reason")
FIRST_PARTITION_FIELD = 1000  # Iceberg numbers partition fields from here

_ICEBERG_TYPES: dict[pa.DataType, IcebergType] = {
    pa.string(): StringType(),
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    INSTANT: TimestamptzType(),
}


# Two processes may create the catalog's own tables, or the namespace, in the same moment: one of them looks again.
_looking_again = retry(
    retry=retry_if_exception_type(DatabaseError), stop=stop_after_attempt(5), wait=wait_random(0.05, 0.3), reraise=True
)


@_looking_again
def open_catalog(settings: Settings) -> Catalog:
    """The Iceberg catalog of the settings: SQL (SQLite when embedded) or REST."""
    uri = settings.catalog
    if uri.startswith(SQLITE):
        _prepare_sqlite(Path(uri.removeprefix(SQLITE).split("?")[0]))
        if "?" not in uri:
            uri += f"?timeout={BUSY_SECONDS}"
    storage = settings.s3.for_iceberg() if settings.warehouse_url.startswith("s3://") else {}
    return load_catalog(settings.catalog_name, type=settings.catalog_type, uri=uri, warehouse=settings.warehouse_url, **storage)


def _prepare_sqlite(file: Path) -> None:
    """Make the folder, and let readers and a writer work side by side (the mode stays in the file)."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(file, timeout=BUSY_SECONDS)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


@_looking_again
def ensure_tables(catalog: Catalog) -> None:
    """Create what is missing: the namespace, and the tables, each with an empty snapshot on main. Safe to repeat, and at once."""
    catalog.create_namespace_if_not_exists(NAMESPACE)
    for table in TABLES:
        existing = _ensure_table(catalog, table)
        _ensure_columns(existing, table)
        _ensure_snapshot(catalog, existing, table)


def _ensure_table(catalog: Catalog, table: Table) -> IcebergTable:
    """Load the table, or make it. Asked to make one that exists, an SQL catalog would leave a metadata file behind each time."""
    try:
        return catalog.load_table(table.identifier)
    except NoSuchTableError:
        return catalog.create_table_if_not_exists(
            table.identifier,
            schema=iceberg_schema(table),
            partition_spec=partition_spec(table),
            properties=COMMON_PROPERTIES | table.properties,
        )


def _ensure_columns(existing: IcebergTable, table: Table) -> None:
    """Add the columns that a table of an earlier release lacks. They may be empty, so no file is rewritten."""
    has = {field.name for field in existing.schema().fields}
    if missing := [column for column in table.columns if column.name not in has]:
        try:
            with existing.update_schema() as change:
                for column in missing:
                    change.add_column(column.name, _ICEBERG_TYPES[column.type], column.meaning, required=column.required)
        except CommitFailedException:  # another process was faster, or has changed something else: look again
            _ensure_columns(existing.refresh(), table)


def _ensure_snapshot(catalog: Catalog, existing: IcebergTable, table: Table) -> None:
    """Give main a first snapshot: branches start from it, and publication compares with it."""
    if existing.current_snapshot() is not None:
        return
    try:
        existing.append(table.arrow_schema.empty_table())
    except CommitFailedException:
        if catalog.load_table(table.identifier).current_snapshot() is None:  # else another process was faster
            raise


def iceberg_schema(table: Table) -> Schema:
    """The Iceberg schema: fields numbered from 1 in the order of the definition; the key columns identify a row."""
    fields = [
        NestedField(place, column.name, _ICEBERG_TYPES[column.type], required=column.required, doc=column.meaning)
        for place, column in enumerate(table.columns, start=1)
    ]
    return Schema(*fields, identifier_field_ids=[f.field_id for f in fields if f.name in table.key])


def partition_spec(table: Table) -> PartitionSpec:
    """Partition by the day of `table.day_of`; no partitions where it has none."""
    if table.day_of is None:
        return PartitionSpec()
    source = next(place for place, column in enumerate(table.columns, start=1) if column.name == table.day_of)
    return PartitionSpec(PartitionField(source, FIRST_PARTITION_FIELD, DayTransform(), f"{table.day_of}_day"))


def read_data(catalog: Catalog, data_id: str) -> bytes | None:
    """The payload of `data_id`; None if the lake does not have it (or has no tables yet)."""
    rows = _rows(catalog, DATA, where(EqualTo, "data_id", data_id), ("payload", "seq"))
    return min(rows, key=lambda row: row["seq"])["payload"] if rows else None


def read_trigger(catalog: Catalog, vin: str, seq: int) -> tuple[str, str] | None:
    """The request_id and data_id of one entry; None if the lake does not have it."""
    rows = _rows(catalog, IDS, _entry_filter("ts", vin, seq), ("request_id", "data_id"))
    return (rows[0]["request_id"], rows[0]["data_id"]) if rows else None


def read_outcome(catalog: Catalog, vin: str, seq: int) -> str | None:
    """How the entry ended; None if the lake does not know that it has."""
    rows = _rows(catalog, OUTCOMES, _entry_filter("accepted_at", vin, seq), ("outcome",))
    return rows[0]["outcome"] if rows else None


def read_entries(catalog: Catalog, vin: str, *, since: datetime | None = None) -> list[Life]:
    """Every entry of a vehicle accepted at or after `since` (UTC; None: ever), oldest first."""
    ids = _rows(catalog, IDS, _vin_filter(vin, since), ENTRY)
    return _lives(catalog, ids, where(EqualTo, "vin", vin))


def read_batch(catalog: Catalog, request_id: str) -> list[Life]:
    """Every entry of every trigger with this request_id, by seq and VIN."""
    return _lives(catalog, _rows(catalog, IDS, where(EqualTo, "request_id", request_id), ENTRY), AlwaysTrue())


def read_segments(catalog: Catalog, since: datetime) -> set[str]:
    """The paths of the archive's segments that were ingested at or after `since` (UTC)."""
    return {row["path"] for row in _rows(catalog, SEGMENTS, where(GreaterThanOrEqual, "ingested_at", since), ("path",))}


def read_ended(catalog: Catalog, since: datetime) -> set[tuple[str, int]]:
    """(vin, seq) of every entry accepted at or after `since` (UTC) that has ended."""
    rows = _rows(catalog, OUTCOMES, where(GreaterThanOrEqual, "accepted_at", since), ("vin", "seq"))
    return {(row["vin"], row["seq"]) for row in rows}


def read_data_ids(catalog: Catalog, since: datetime | None = None) -> list[str]:
    """The data_id of all data first seen at or after `since` (UTC; None: ever)."""
    row_filter = AlwaysTrue() if since is None else where(GreaterThanOrEqual, "first_seen_at", since)
    return [row["data_id"] for row in _rows(catalog, DATA, row_filter, ("data_id",))]


def _lives(catalog: Catalog, ids: list[dict[str, Any]], whose: BooleanExpression) -> list[Life]:
    """What lives in the lake, by seq and VIN, with how it ended; each once, also where a table has a row twice."""
    if not ids:
        return []
    outcomes = _rows(catalog, OUTCOMES, And(whose, _triggers_filter("accepted_at", {row["seq"] for row in ids})))
    ended = {(row["seq"], row["vin"]): row for row in outcomes}
    lives = {}
    for row in ids:
        key = (row["seq"], row["vin"])
        end = ended.get(key, {})
        said = {name: end[name] for name in ENDED if name in end}
        state = end.get("outcome", State.PENDING.value)
        lives[key] = Life(row["vin"], row["seq"], row["request_id"], row["data_id"], state, **said)
    return [lives[key] for key in sorted(lives)]


def where(predicate: type[LiteralPredicate], column: str, value: str | int | datetime) -> BooleanExpression:
    """One comparison, as PyIceberg's scans and deletes take it."""
    return predicate(column, value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value)


def _vin_filter(vin: str, since: datetime | None) -> BooleanExpression:
    mine = where(EqualTo, "vin", vin)
    return mine if since is None else And(mine, where(GreaterThanOrEqual, "ts", since))


def _entry_filter(instant: str, vin: str, seq: int) -> BooleanExpression:
    return And(where(EqualTo, "vin", vin), _triggers_filter(instant, {seq}))


def _triggers_filter(instant: str, seqs: Set[int]) -> BooleanExpression:
    """The entries of these triggers; their instants are in their seqs, so only those days' partitions are read."""
    first, last = datetime_of(min(seqs)), datetime_of(max(seqs)) + timedelta(milliseconds=1)
    moments = And(where(GreaterThanOrEqual, instant, first), where(LessThan, instant, last))
    return And(moments, In(term="seq", literals=seqs))  # of one, PyIceberg makes an `EqualTo`


def _rows(
    catalog: Catalog, table: Table, row_filter: BooleanExpression, columns: tuple[str, ...] = ("*",)
) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = catalog.load_table(table.identifier).scan(row_filter, columns).to_arrow().to_pylist()
    except NoSuchTableError:  # nothing has been ingested yet
        return []
    return rows
