"""Small reads of the lake for services, without Spark. `manifold/history/` has the queries for people."""

from collections.abc import Mapping, Set
from datetime import datetime, timedelta
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThan

from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import DATA, IDS, OUTCOMES, SEGMENTS, Table
from manifold.lake.catalog import where
from manifold.lake.versions import require_supported

TRIGGER_COLUMNS = ("request_id", "data_id", "campaign", "until")


def read_trigger(catalog: Catalog, vin: str, seq: int) -> EntryTrigger | None:
    """The trigger of one entry; None if the lake does not have it."""
    rows = rows_of(catalog, IDS, And(where(EqualTo, "vin", vin), triggers_filter("ts", {seq})), TRIGGER_COLUMNS)
    return trigger_of(rows[0]) if rows else None


def trigger_of(row: Mapping[str, Any]) -> EntryTrigger:
    """The trigger of an entry, from a row with the columns `TRIGGER_COLUMNS`."""
    until = row.get("until")
    until_ms = None if until is None else round(until.timestamp() * 1000)
    is_of_campaign = row.get("campaign") is not None
    return EntryTrigger(row["request_id"], row["data_id"], is_of_campaign, until_ms)


def read_segments(catalog: Catalog, since: datetime) -> set[str]:
    """The paths of the archive's segments that were ingested at or after `since` (UTC)."""
    return {row["path"] for row in rows_of(catalog, SEGMENTS, where(GreaterThanOrEqual, "ingested_at", since), ("path",))}


def read_ended(catalog: Catalog, since: datetime) -> set[tuple[str, int]]:
    """VIN and seq of every entry that was accepted at or after `since` (UTC) and has ended."""
    rows = rows_of(catalog, OUTCOMES, where(GreaterThanOrEqual, "accepted_at", since), ("vin", "seq"))
    return {(row["vin"], row["seq"]) for row in rows}


def read_data_ids(catalog: Catalog, since: datetime | None = None) -> list[str]:
    """The data_ids of all data first seen at or after `since` (UTC); None means all data."""
    row_filter = AlwaysTrue() if since is None else where(GreaterThanOrEqual, "first_seen_at", since)
    return [row["data_id"] for row in rows_of(catalog, DATA, row_filter, ("data_id",))]


def triggers_filter(instant_column: str, seqs: Set[int]) -> BooleanExpression:
    """A filter for the entries of the triggers with these seqs; `instant_column` has the instant of acceptance.

    A seq contains that instant, so the filter also bounds the column; then only the partitions of these days are read.
    """
    start = datetime_of(min(seqs))
    end = datetime_of(max(seqs)) + timedelta(milliseconds=1)
    is_in_range = And(where(GreaterThanOrEqual, instant_column, start), where(LessThan, instant_column, end))
    return And(is_in_range, In(term="seq", literals=seqs))  # PyIceberg turns a single literal into `EqualTo`


def rows_of(
    catalog: Catalog, table: Table, row_filter: BooleanExpression, columns: tuple[str, ...] = ("*",), limit: int | None = None
) -> list[dict[str, Any]]:
    """The rows of the table's main that match the filter, at most `limit`; empty if the table does not exist.

    Raises:
        Permanent: the table lacks a column, because it is newer or older than this code.
    """
    try:
        loaded = catalog.load_table(table.identifier)
    except NoSuchTableError:  # nothing has been ingested yet
        return []
    try:
        rows: list[dict[str, Any]] = loaded.scan(row_filter, columns, limit=limit).to_arrow().to_pylist()
    except ValueError:  # PyIceberg raises it for a missing column
        require_supported(loaded, table)  # raises, and names the remedy, if the table's version is the cause
        raise
    return rows
