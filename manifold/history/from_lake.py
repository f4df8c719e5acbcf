"""Reads entries, batches and data from the lake, without Spark. Importing PyIceberg takes a second."""

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

ENTRY = ("vin", "seq", "request_id", "data_id")
ENDED = ("dispatched_at", "acknowledged_at", "ended_at", "attempts", "reason")
SEEN = ("first_seen_at", "last_seen_at", "times_seen")


class Lake:
    """Queries on an open catalog. `ingested` in a result contains the paths of the segments ingested since a given time.

    The segments are read before the tables: rows published meanwhile are then found twice, in lake and archive, but never missed.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def ingested(self, since: datetime) -> set[str]:
        """Return the paths of the segments ingested at or after `since` (UTC)."""
        return read_segments(self._catalog, since)

    def entries_of(self, vin: str, since: datetime) -> tuple[list[EntryHistory], Set[str]]:
        """Return every entry of a vehicle, oldest first, and `ingested`."""
        ingested = self.ingested(since)
        return read_entries(self._catalog, vin), ingested

    def vehicle_page(self, vin: str, since: datetime, bounds: Bounds) -> tuple[VehiclePage, Set[str]]:
        """Return the newest entries of a vehicle within the bounds, and `ingested`."""
        ingested = self.ingested(since)
        return read_vehicle_page(self._catalog, vin, bounds), ingested

    def batch_page(self, request_id: str, since: datetime, bounds: Bounds) -> tuple[BatchPage, Set[str]]:
        """Return the newest triggers of a request_id within the bounds, and `ingested`."""
        ingested = self.ingested(since)
        return read_page(self._catalog, request_id, bounds), ingested

    def of_triggers(self, seqs: Set[int]) -> list[EntryHistory]:
        """Return every entry of these triggers, by seq and VIN."""
        return read_triggers(self._catalog, seqs)

    def vehicles(self, seq: int, vins: Set[str]) -> Iterator[tuple[str, str]]:
        """Yield (vin, state) of each vehicle of a trigger (only `vins`, if given)."""
        return read_vehicles(self._catalog, seq, vins)

    def compacted_queue(self, client_id: str) -> QueueInLake:
        """Return what the lake has of a client's compacted queue."""
        return read_queue_in_lake(self._catalog, client_id)

    def sizes(self, client_id: str, seqs: Set[int]) -> dict[int, int]:
        """Return the payload sizes in bytes of these messages of a compacted queue."""
        return read_sizes(self._catalog, client_id, seqs)

    def data_seen(self, data_id: str) -> dict[str, Any] | None:
        """Return first_seen_at, last_seen_at and times_seen of `data_id`; None if it is not in the lake."""
        rows = rows_of(self._catalog, META, where(EqualTo, "data_id", data_id), ("data_id", *SEEN))
        return folded(pa.Table.from_pylist(rows)).select(SEEN).to_pylist()[0] if rows else None

    def payload(self, data_id: str) -> bytes | None:
        """Return the payload of `data_id`; None if it is not in the lake."""
        from manifold.lake.payloads import read_payload  # here: it loads the logging library, which no other query needs

        return read_payload(self._catalog, data_id)


def read_entries(catalog: Catalog, vin: str, *, most: int | None = None) -> list[EntryHistory]:
    """Return the entries of a vehicle, oldest first; at most `most`, if given."""
    mine = where(EqualTo, "vin", vin)
    return _with_ends(catalog, rows_of(catalog, IDS, mine, ENTRY, most), mine)


def read_triggers(catalog: Catalog, seqs: Set[int]) -> list[EntryHistory]:
    """Return every entry of these triggers, by seq and VIN."""
    return _with_ends(catalog, rows_of(catalog, IDS, triggers_filter("ts", seqs), ENTRY), AlwaysTrue()) if seqs else []


def read_vehicle_page(catalog: Catalog, vin: str, bounds: Bounds) -> VehiclePage:
    """Return the newest entries of a vehicle within the bounds, oldest first. Memory use does not depend on their number."""
    rows, before = newest_entries(catalog, vin, bounds)
    return VehiclePage(_with_ends(catalog, rows, where(EqualTo, "vin", vin)), before)


def read_page(catalog: Catalog, request_id: str, bounds: Bounds) -> BatchPage:
    """Return the newest triggers of this request_id within the bounds, and the entries of those within the entry limit."""
    batches, before = newest_triggers(catalog, request_id, bounds)
    told = frozenset(bounds.within_entry_limit(batches))
    return BatchPage(batches, before, read_triggers(catalog, told), told)


def _with_ends(catalog: Catalog, ids: list[dict[str, Any]], whose: BooleanExpression) -> list[EntryHistory]:
    """Join rows of the ids table with their outcomes; return entries by seq and VIN, without duplicates."""
    if not ids:
        return []
    outcomes = rows_of(catalog, OUTCOMES, And(whose, triggers_filter("accepted_at", {row["seq"] for row in ids})))
    # An entry that was withdrawn may have been delivered all the same; then it counts as delivered.
    by_strength = sorted(outcomes, key=lambda row: row["outcome"] != Outcome.WITHDRAWN)
    ended = {(row["seq"], row["vin"]): row for row in by_strength}
    entries = {}
    for row in ids:
        key = (row["seq"], row["vin"])
        end = ended.get(key, {})
        ending = {name: end[name] for name in ENDED if name in end}
        state = end.get("outcome", EntryState.PENDING.value)
        entries[key] = EntryHistory(row["vin"], row["seq"], row["request_id"], row["data_id"], state, **ending)
    return [entries[key] for key in sorted(entries)]
