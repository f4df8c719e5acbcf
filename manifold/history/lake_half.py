"""The lake's half of an answer: from the API, which has the lake open, or read in this process if no API answers.

The API's routes are `/lake/entries` and `/lake/triggers`.
"""

from collections.abc import Set
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from manifold.history.entry import BatchHistory, BatchPage, Bounds, EntryHistory, VehiclePage
from manifold.history.from_service import ask_service, entries_of
from manifold.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from manifold.history.from_lake import Lake


class LakeHalf:
    """The lake's half of answers. With a catalog, it never asks the API; otherwise it falls back to `local`."""

    def __init__(self, settings: Settings, catalog: "Catalog | None" = None) -> None:
        self._settings, self._catalog = settings, catalog

    @cached_property
    def local(self) -> "Lake":
        """The lake, opened in this process on first use, which takes a second."""
        from manifold.history.from_lake import Lake
        from manifold.lake.catalog import open_catalog

        return Lake(open_catalog(self._settings) if self._catalog is None else self._catalog)

    def entries_of(self, vin: str, since: datetime) -> tuple[list[EntryHistory], Set[str]]:
        """Return every entry of a vehicle, oldest first, and the segments ingested since."""
        answer = self._ask("entries", since=since.isoformat(), vin=vin)
        return self.local.entries_of(vin, since) if answer is None else (entries_of(vin, answer), set(answer["ingested"]))

    def vehicle_page(self, vin: str, since: datetime, bounds: Bounds) -> tuple[VehiclePage, Set[str]]:
        """Return the newest entries of a vehicle within the bounds, and the segments ingested since."""
        asked = {"limit": bounds.limit, "rows": bounds.rows, "before": bounds.before, "since_seq": bounds.since}
        answer = self._ask("entries", since=since.isoformat(), vin=vin, **asked)
        if answer is None or "before" not in answer:  # an API of an earlier release returns all entries
            return self.local.vehicle_page(vin, since, bounds)
        return VehiclePage(entries_of(vin, answer), answer["before"]), set(answer["ingested"])

    def batch_page(self, request_id: str, since: datetime, bounds: Bounds) -> tuple[BatchPage, Set[str]]:
        """Return the newest triggers of a request_id within the bounds, and the segments ingested since."""
        asked = {"limit": bounds.limit, "entries": bounds.entries, "rows": bounds.rows, "before": bounds.before}
        answer = self._ask("triggers", since=since.isoformat(), request_id=request_id, since_seq=bounds.since, **asked)
        if answer is None:
            return self.local.batch_page(request_id, since, bounds)
        batches = [BatchHistory(**fields) for fields in answer["batches"]]
        return BatchPage(batches, answer["before"], _entries_of_all(answer), frozenset(answer["told"])), set(answer["ingested"])

    def _ask(self, what: str, **asked: str | int) -> dict[str, Any] | None:
        return ask_service(self._settings, f"lake/{what}", asked, "ingested") if self._catalog is None else None


def _entries_of_all(answer: dict[str, Any]) -> list[EntryHistory]:
    return [EntryHistory.from_json(fields["vin"], fields) for fields in answer["entries"]]
