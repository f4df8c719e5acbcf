"""The lake from plain Python: open the catalog, make the tables, read a little. Needs no Spark."""

import sqlite3
import warnings
from collections.abc import Iterator, Set
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThan, LiteralPredicate
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import DayTransform
from pyiceberg.types import BinaryType, BooleanType, IcebergType, IntegerType, LongType, NestedField, StringType, TimestamptzType
from sqlalchemy.exc import DatabaseError
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from adapters.versions import properties_at_birth, require_known, version_of
from contracts.catalog_properties import signs
from contracts.errors import Permanent
from contracts.lives import Life
from contracts.outcomes import EntryState
from contracts.seq import datetime_of
from contracts.settings import Settings
from contracts.tables import DATA, IDS, INSTANT, META, NAMESPACE, OUTCOMES, SEGMENTS, TABLES, Table

# Spark writes the tables whose row groups are small; PyIceberg says at each of its own appends that it cannot.
warnings.filterwarnings("ignore", message="Parquet writer option")

LOGIN_REFUSED = (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError)
SQLITE = "sqlite:///"
BUSY_SECONDS = 30  # how long a writer waits for another one's lock on the SQLite file
ENTRY = ("vin", "seq", "request_id", "data_id")
ENDED = ("dispatched_at", "acknowledged_at", "ended_at", "attempts", "reason")
FIRST_PARTITION_FIELD = 1000  # Iceberg numbers partition fields from here

ICEBERG_TYPES: dict[pa.DataType, IcebergType] = {
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
    """The Iceberg catalog of the settings: SQL (SQLite when embedded) or REST.

    Raises:
        Permanent: the catalog refuses the login; or what the settings ask for needs a library that is not here.
    """
    uri = settings.catalog
    if uri.startswith(SQLITE):
        _prepare_sqlite(Path(uri.removeprefix(SQLITE).split("?")[0]))
        if "?" not in uri:
            uri += f"?timeout={BUSY_SECONDS}"
    properties = {"type": settings.catalog_type, "uri": uri, "warehouse": settings.warehouse_url, **settings.catalog_options}
    try:
        return load_catalog(settings.catalog_name, **{name: value for name, value in properties.items() if value})
    except LOGIN_REFUSED as exc:
        raise login_refused(settings, exc) from exc
    except ModuleNotFoundError as exc:
        why = f"what MANIFOLD_CATALOG_PROPERTIES asks for needs {exc.name}, which Manifold does not bring: pip install {exc.name}"
        raise Permanent(why) from exc


def login_refused(settings: Settings, exc: Exception) -> Permanent:
    """What to tell whoever was refused so."""
    what = "token or credential (with oauth2-server-uri and scope, where it asks for them)"
    if signs(settings.catalog_options):
        what = "the keys (client.access-key-id and client.secret-access-key, or those of AWS's own chain) and rest.signing-…"
    return Permanent(
        f"the catalog {settings.catalog.split('@')[-1]} refuses the login ({' '.join(str(exc).split())[:200]}); correct "
        f"{what} in MANIFOLD_CATALOG_PROPERTIES, and see that it may read and write the tables"
    )


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
def ensure_tables(catalog: Catalog) -> list[str]:
    """Create what is missing: the namespace, and the tables, each with an empty snapshot on main. Safe to repeat, and at once.

    Tables of an earlier release get the optional columns that they lack, and no more; their names are returned, for `manifold
    lake migrate` to do the rest.

    Raises:
        Permanent: a table is newer than this code, or too old for it.
    """
    older = []
    for existing, table in _made(catalog):
        require_known(existing, table)
        if version_of(existing) < table.version:
            older.append(table.name)
        _ensure_columns(existing, table)
        _ensure_snapshot(catalog, existing, table)
    return older


@_looking_again
def make_missing_tables(catalog: Catalog) -> None:
    """Create what is missing, and leave what is there as it is."""
    for existing, table in _made(catalog):
        _ensure_snapshot(catalog, existing, table)


def _made(catalog: Catalog) -> Iterator[tuple[IcebergTable, Table]]:
    catalog.create_namespace_if_not_exists(NAMESPACE)
    for table in TABLES:
        yield _ensure_table(catalog, table), table


def _ensure_table(catalog: Catalog, table: Table) -> IcebergTable:
    """Load the table, or make it. Asked to make one that exists, an SQL catalog would leave a metadata file behind each time."""
    try:
        return catalog.load_table(table.identifier)
    except NoSuchTableError:
        return catalog.create_table_if_not_exists(
            table.identifier,
            schema=iceberg_schema(table),
            partition_spec=partition_spec(table),
            properties=properties_at_birth(table),
        )


def _ensure_columns(existing: IcebergTable, table: Table) -> None:
    """Add the columns that a table of an earlier release lacks. They may be empty, so no file is rewritten."""
    has = {field.name for field in existing.schema().fields}
    if missing := [column for column in table.columns if column.name not in has]:
        try:
            with existing.update_schema() as change:
                for column in missing:
                    change.add_column(column.name, ICEBERG_TYPES[column.type], column.meaning, required=column.required)
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
        NestedField(place, column.name, ICEBERG_TYPES[column.type], required=column.required, doc=column.meaning)
        for place, column in enumerate(table.columns, start=1)
    ]
    return Schema(*fields, identifier_field_ids=[f.field_id for f in fields if f.name in table.key])


def partition_spec(table: Table) -> PartitionSpec:
    """Partition by the day of `table.day_of`; no partitions where it has none."""
    if table.day_of is None:
        return PartitionSpec()
    source = next(place for place, column in enumerate(table.columns, start=1) if column.name == table.day_of)
    return PartitionSpec(PartitionField(source, FIRST_PARTITION_FIELD, DayTransform(), f"{table.day_of}_day"))


def read_data_seen(catalog: Catalog, data_id: str) -> dict[str, Any] | None:
    """first_seen_at, last_seen_at and times_seen of `data_id`; None if the lake does not have it."""
    rows = rows_of(catalog, META, where(EqualTo, "data_id", data_id), ("first_seen_at", "last_seen_at", "times_seen"))
    return rows[0] if rows else None


def read_trigger(catalog: Catalog, vin: str, seq: int) -> tuple[str, str] | None:
    """The request_id and data_id of one entry; None if the lake does not have it."""
    rows = rows_of(catalog, IDS, _entry_filter("ts", vin, seq), ("request_id", "data_id"))
    return (rows[0]["request_id"], rows[0]["data_id"]) if rows else None


def read_outcome(catalog: Catalog, vin: str, seq: int) -> str | None:
    """How the entry ended; None if the lake does not know that it has."""
    rows = rows_of(catalog, OUTCOMES, _entry_filter("accepted_at", vin, seq), ("outcome",))
    return rows[0]["outcome"] if rows else None


def read_entries(catalog: Catalog, vin: str, *, since: datetime | None = None, most: int | None = None) -> list[Life]:
    """Every entry of a vehicle accepted at or after `since` (UTC; None: ever), oldest first; `most`: no more of them."""
    ids = rows_of(catalog, IDS, _vin_filter(vin, since), ENTRY, most)
    return _lives(catalog, ids, where(EqualTo, "vin", vin))


def read_triggers(catalog: Catalog, seqs: Set[int]) -> list[Life]:
    """Every entry of the triggers with these seqs, by seq and VIN."""
    return _lives(catalog, rows_of(catalog, IDS, triggers_filter("ts", seqs), ENTRY), AlwaysTrue()) if seqs else []


def read_segments(catalog: Catalog, since: datetime) -> set[str]:
    """The paths of the archive's segments that were ingested at or after `since` (UTC)."""
    return {row["path"] for row in rows_of(catalog, SEGMENTS, where(GreaterThanOrEqual, "ingested_at", since), ("path",))}


def read_ended(catalog: Catalog, since: datetime) -> set[tuple[str, int]]:
    """(vin, seq) of every entry accepted at or after `since` (UTC) that has ended."""
    rows = rows_of(catalog, OUTCOMES, where(GreaterThanOrEqual, "accepted_at", since), ("vin", "seq"))
    return {(row["vin"], row["seq"]) for row in rows}


def read_data_ids(catalog: Catalog, since: datetime | None = None) -> list[str]:
    """The data_id of all data first seen at or after `since` (UTC; None: ever)."""
    row_filter = AlwaysTrue() if since is None else where(GreaterThanOrEqual, "first_seen_at", since)
    return [row["data_id"] for row in rows_of(catalog, DATA, row_filter, ("data_id",))]


def _lives(catalog: Catalog, ids: list[dict[str, Any]], whose: BooleanExpression) -> list[Life]:
    """What lives in the lake, by seq and VIN, with how it ended; each once, also where a table has a row twice."""
    if not ids:
        return []
    outcomes = rows_of(catalog, OUTCOMES, And(whose, triggers_filter("accepted_at", {row["seq"] for row in ids})))
    ended = {(row["seq"], row["vin"]): row for row in outcomes}
    lives = {}
    for row in ids:
        key = (row["seq"], row["vin"])
        end = ended.get(key, {})
        said = {name: end[name] for name in ENDED if name in end}
        state = end.get("outcome", EntryState.PENDING.value)
        lives[key] = Life(row["vin"], row["seq"], row["request_id"], row["data_id"], state, **said)
    return [lives[key] for key in sorted(lives)]


def where(predicate: type[LiteralPredicate], column: str, value: str | int | datetime) -> BooleanExpression:
    """One comparison, as PyIceberg's scans and deletes take it."""
    return predicate(column, value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value)


def _vin_filter(vin: str, since: datetime | None) -> BooleanExpression:
    mine = where(EqualTo, "vin", vin)
    return mine if since is None else And(mine, where(GreaterThanOrEqual, "ts", since))


def _entry_filter(instant: str, vin: str, seq: int) -> BooleanExpression:
    return And(where(EqualTo, "vin", vin), triggers_filter(instant, {seq}))


def triggers_filter(instant: str, seqs: Set[int]) -> BooleanExpression:
    """The entries of these triggers; their instants are in their seqs, so only those days' partitions are read."""
    first, last = datetime_of(min(seqs)), datetime_of(max(seqs)) + timedelta(milliseconds=1)
    moments = And(where(GreaterThanOrEqual, instant, first), where(LessThan, instant, last))
    return And(moments, In(term="seq", literals=seqs))  # of one, PyIceberg makes an `EqualTo`


def rows_of(
    catalog: Catalog, table: Table, row_filter: BooleanExpression, columns: tuple[str, ...] = ("*",), most: int | None = None
) -> list[dict[str, Any]]:
    """Main's rows that fit the filter, at `most` so many; none where the table has not been made.

    Raises:
        Permanent: it lacks a column, because it is newer or older than this code.
    """
    try:
        loaded = catalog.load_table(table.identifier)
    except NoSuchTableError:  # nothing has been ingested yet
        return []
    try:
        rows: list[dict[str, Any]] = loaded.scan(row_filter, columns, limit=most).to_arrow().to_pylist()
    except ValueError:  # a column is not there
        require_known(loaded, table)
        raise
    return rows
