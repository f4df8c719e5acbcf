"""Reads entries, batches and data from the lake, without Spark. Importing this module takes a second, because of PyIceberg."""

from collections.abc import Iterator, Set
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo

from manifold.contracts.outcomes import EntryState, Outcome
from manifold.contracts.tables import IDS, META, OUTCOMES
from manifold.history.ecq_from_lake import QueueInLake, read_queue_in_lake, read_sizes
from manifold.history.entry import BatchPage, Bounds, EntryHistory, VehiclePage
from manifold.history.lake_pages import newest_entries, newest_triggers, read_vehicles
from manifold.lake.catalog import where
from manifold.lake.reads import read_segments, rows_of, triggers_filter
from manifold.lake.sightings import folded

ENTRY_COLUMNS = ("vin", "seq", "request_id", "data_id")
OUTCOME_COLUMNS = ("dispatched_at", "acknowledged_at", "ended_at", "attempts", "reason")
SEEN_COLUMNS = ("first_seen_at", "last_seen_at", "times_seen")


class Lake:
    """Queries on an open catalog. `ingested` in a result contains the paths of the segments ingested at or after a given time.

    The list of segments is read before the tables. So rows that are published during a query may be found both in the lake and in
    the archive, but are never missed.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def ingested(self, since: datetime) -> set[str]:
        """Return the paths of the segments ingested at or after `since` (UTC)."""
        return read_segments(self._catalog, since)

    def entries_of(self, vin: str, since: datetime) -> tuple[list[EntryHistory], Set[str]]:
        """Return every entry of a vehicle, oldest first, and the segments ingested at or after `since` (UTC)."""
        ingested = self.ingested(since)
        return read_entries(self._catalog, vin), ingested

    def vehicle_page(self, vin: str, since: datetime, bounds: Bounds) -> tuple[VehiclePage, Set[str]]:
        """Return the newest entries of a vehicle within the bounds, and the segments ingested at or after `since` (UTC)."""
        ingested = self.ingested(since)
        return read_vehicle_page(self._catalog, vin, bounds), ingested

    def batch_page(self, request_id: str, since: datetime, bounds: Bounds) -> tuple[BatchPage, Set[str]]:
        """Return the newest triggers of a request_id within the bounds, and the segments ingested at or after `since` (UTC)."""
        ingested = self.ingested(since)
        return read_page(self._catalog, request_id, bounds), ingested

    def of_triggers(self, seqs: Set[int]) -> list[EntryHistory]:
        """Return every entry of these triggers, sorted by seq and VIN."""
        return read_triggers(self._catalog, seqs)

    def vehicles(self, seq: int, vins: Set[str]) -> Iterator[tuple[str, str]]:
        """Yield (vin, state) of each vehicle of a trigger; if `vins` is not empty, only of these vehicles."""
        return read_vehicles(self._catalog, seq, vins)

    def compacted_queue(self, client_id: str) -> QueueInLake:
        """Return the messages and the state of a client's compacted queue that are in the lake."""
        return read_queue_in_lake(self._catalog, client_id)

    def sizes(self, client_id: str, seqs: Set[int]) -> dict[int, int]:
        """Return the payload sizes in bytes of these messages of a compacted queue."""
        return read_sizes(self._catalog, client_id, seqs)

    def data_seen(self, data_id: str) -> dict[str, Any] | None:
        """Return first_seen_at, last_seen_at and times_seen of `data_id`; None if it is not in the lake."""
        rows = rows_of(self._catalog, META, where(EqualTo, "data_id", data_id), ("data_id", *SEEN_COLUMNS))
        if not rows:
            return None
        folded_rows = folded(pa.Table.from_pylist(rows))  # a single row: each run that saw the data_id has appended one
        seen: list[dict[str, Any]] = folded_rows.select(SEEN_COLUMNS).to_pylist()
        return seen[0]

    def payload(self, data_id: str) -> bytes | None:
        """Return the payload of `data_id`; None if it is not in the lake."""
        # Imported here, because it loads the logging library, which no other query needs.
        from manifold.lake.payloads import read_payload

        return read_payload(self._catalog, data_id)


def read_entries(catalog: Catalog, vin: str) -> list[EntryHistory]:
    """Return every entry of a vehicle, oldest first."""
    is_of_vehicle = where(EqualTo, "vin", vin)
    id_rows = rows_of(catalog, IDS, is_of_vehicle, ENTRY_COLUMNS)
    return _with_outcomes(catalog, id_rows, is_of_vehicle)


def read_triggers(catalog: Catalog, seqs: Set[int]) -> list[EntryHistory]:
    """Return every entry of these triggers, sorted by seq and VIN."""
    if not seqs:
        return []
    id_rows = rows_of(catalog, IDS, triggers_filter("ts", seqs), ENTRY_COLUMNS)
    return _with_outcomes(catalog, id_rows, AlwaysTrue())


def read_vehicle_page(catalog: Catalog, vin: str, bounds: Bounds) -> VehiclePage:
    """Return the newest entries of a vehicle within the bounds, oldest first. Memory use does not depend on their number."""
    id_rows, before = newest_entries(catalog, vin, bounds)
    return VehiclePage(_with_outcomes(catalog, id_rows, where(EqualTo, "vin", vin)), before)


def read_page(catalog: Catalog, request_id: str, bounds: Bounds) -> BatchPage:
    """Return the newest triggers of this request_id within the bounds.

    The page lists the entries of the newest of these triggers, as far as the entry limit allows.
    """
    batches, before = newest_triggers(catalog, request_id, bounds)
    listed_seqs = frozenset(bounds.within_entry_limit(batches))
    return BatchPage(batches, before, read_triggers(catalog, listed_seqs), listed_seqs)


def _with_outcomes(catalog: Catalog, id_rows: list[dict[str, Any]], outcome_filter: BooleanExpression) -> list[EntryHistory]:
    """Join rows of the ids table with their outcomes. Return entries sorted by seq and VIN, without duplicates.

    `outcome_filter` limits the outcomes that are read, in addition to the triggers of the rows.
    """
    if not id_rows:
        return []
    seqs = {row["seq"] for row in id_rows}
    outcome_rows = rows_of(catalog, OUTCOMES, And(outcome_filter, triggers_filter("accepted_at", seqs)))
    # An entry may have two outcomes, because a withdrawn entry may still be delivered. Withdrawals are sorted first, so that the
    # other outcome replaces them in the dictionary.
    outcome_rows.sort(key=lambda row: row["outcome"] != Outcome.WITHDRAWN)
    outcome_row_of = {(row["seq"], row["vin"]): row for row in outcome_rows}
    entries: dict[tuple[int, str], EntryHistory] = {}
    for row in id_rows:
        key = (row["seq"], row["vin"])
        state: str = EntryState.PENDING.value
        details: dict[str, Any] = {}
        outcome_row = outcome_row_of.get(key)
        if outcome_row is not None:
            state = outcome_row["outcome"]
            details = {name: outcome_row[name] for name in OUTCOME_COLUMNS if name in outcome_row}  # older tables lack some
        entries[key] = EntryHistory(row["vin"], row["seq"], row["request_id"], row["data_id"], state, **details)
    return [entries[key] for key in sorted(entries)]
