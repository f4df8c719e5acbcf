"""The lake's part of a result: requested from the API, which has the lake open, or read in this process if no API responds.

The routes of the API are `/lake/entries` and `/lake/triggers`.
"""

from collections.abc import Set
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from manifold.history.entry import BatchHistory, BatchPage, Bounds, EntryHistory, VehiclePage
from manifold.history.from_service import ask_service, parse_entries
from manifold.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from manifold.history.from_lake import Lake


class LakeHalf:
    """The lake's part of results.

    With a catalog, everything is read through the catalog. Without one, the API is asked first, and `local` is the fallback.
    """

    def __init__(self, settings: Settings, catalog: "Catalog | None" = None) -> None:
        self._settings = settings
        self._catalog = catalog

    @cached_property
    def local(self) -> "Lake":
        """The lake in this process. Without a catalog, it is opened on first use, which takes a second."""
        from manifold.history.from_lake import Lake
        from manifold.lake.catalog import open_catalog

        return Lake(open_catalog(self._settings) if self._catalog is None else self._catalog)

    def entries_of(self, vin: str, since: datetime) -> tuple[list[EntryHistory], Set[str]]:
        """Return every entry of a vehicle, oldest first, and the paths of the segments ingested at or after `since` (UTC)."""
        response = self._ask_api("entries", since=since.isoformat(), vin=vin)
        if response is None:
            return self.local.entries_of(vin, since)
        return parse_entries(vin, response), set(response["ingested"])

    def vehicle_page(self, vin: str, since: datetime, bounds: Bounds) -> tuple[VehiclePage, Set[str]]:
        """Return the newest entries of a vehicle within the bounds, and the segments ingested at or after `since` (UTC)."""
        parameters = {"limit": bounds.limit, "rows": bounds.rows, "before": bounds.before, "since_seq": bounds.since}
        response = self._ask_api("entries", since=since.isoformat(), vin=vin, **parameters)
        if response is None or "before" not in response:  # an API of an earlier release returns all entries, without `before`
            return self.local.vehicle_page(vin, since, bounds)
        return VehiclePage(parse_entries(vin, response), response["before"]), set(response["ingested"])

    def batch_page(self, request_id: str, since: datetime, bounds: Bounds) -> tuple[BatchPage, Set[str]]:
        """Return the newest triggers of a request_id within the bounds, and the segments ingested at or after `since` (UTC)."""
        parameters = {"limit": bounds.limit, "entries": bounds.entries, "rows": bounds.rows, "before": bounds.before}
        response = self._ask_api("triggers", since=since.isoformat(), request_id=request_id, since_seq=bounds.since, **parameters)
        if response is None:
            return self.local.batch_page(request_id, since, bounds)
        batches = [BatchHistory(**fields) for fields in response["batches"]]
        entries = [EntryHistory.from_json(fields["vin"], fields) for fields in response["entries"]]
        complete_seqs = frozenset(response["told"])  # of the triggers whose entries are all in this page
        page = BatchPage(batches, response["before"], entries, complete_seqs)
        return page, set(response["ingested"])

    def _ask_api(self, route: str, **parameters: str | int) -> dict[str, Any] | None:
        """Request a lake route from the API. Return None if the lake must be read here: with a catalog, or if no API responds."""
        if self._catalog is not None:
            return None
        return ask_service(self._settings, f"lake/{route}", parameters, "ingested")
