"""`/lake/entries` and `/lake/triggers`: the lake's part of a history, for clients such as the console that add the other sources.

The console can read queues and archive as fast as the API. It does not read the lake itself, because importing PyIceberg would
take longer than the request.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from fastapi.responses import Response
from pyiceberg.catalog import Catalog

from manifold.api._history import BATCH_PAGE, MAX_ROWS
from manifold.api._parameters import Before, Limit, RequestIdAsked, VinAsked
from manifold.api._sources import Sources
from manifold.api.models.lake import LakeEntries, LakeTriggers
from manifold.contracts.errors import Retryable
from manifold.contracts.seq import MAX_SEQ
from manifold.history import Bounds, EntryHistory
from manifold.history.from_lake import Lake

MAX_ENTRIES = 20_000  # in one response

Since = Annotated[
    datetime, Query(description="of the segments that are named: when they were ingested; ISO 8601, UTC where it names no zone")
]
Listed = Annotated[
    int, Query(ge=0, description=f"entries that are listed one by one, of the newest triggers first; {MAX_ENTRIES:,} at most")
]
Rows = Annotated[int, Query(ge=1, description=f"rows of the lake that are looked at for one page; {MAX_ROWS:,} at most")]
From = Annotated[int, Query(ge=0, le=MAX_SEQ, description="only what has this `seq` or a greater one")]


def lake_half_routes(sources: Sources) -> APIRouter:
    """Return the routes that read only the lake."""
    router = APIRouter(tags=["lake"])

    async def json_response(read: Callable[[Catalog], dict[str, Any]]) -> Response:
        """Read from the lake and encode the result as JSON, both in a thread."""
        content = await sources.lake.ask(lambda catalog: orjson.dumps(read(catalog)))
        return Response(content, media_type="application/json")

    @router.get("/lake/entries", response_model=LakeEntries)
    async def entries(
        vin: VinAsked,
        since: Since,
        limit: Annotated[
            int | None, Query(ge=1, le=MAX_ENTRIES, description="entries of a page; else all, and 503 if too many")
        ] = None,
        before: Before = MAX_SEQ,
        since_seq: From = 0,
        rows: Rows = MAX_ROWS,
    ) -> Response:
        """A vehicle's entries in the lake, all or a page of them, and the segments ingested at or after `since`."""
        bounds = Bounds(limit=limit or MAX_ENTRIES, rows=min(rows, MAX_ROWS), before=before, since=since_seq)

        def read(catalog: Catalog) -> dict[str, Any]:
            page, ingested = Lake(catalog).vehicle_page(vin, _utc(since), bounds)
            if limit is None and page.before is not None:
                raise Retryable(
                    f"{vin} has more than {MAX_ENTRIES} entries; /api/v1/vins/{vin}/history lists them a page at a time"
                )
            return {"entries": _entries_json(page.entries), "before": page.before, "ingested": sorted(ingested)}

        return await json_response(read)

    @router.get("/lake/triggers", response_model=LakeTriggers)
    async def triggers(
        request_id: RequestIdAsked,
        since: Since,
        limit: Limit = BATCH_PAGE,
        before: Before = MAX_SEQ,
        since_seq: From = 0,
        entries: Listed = MAX_ENTRIES,
        rows: Rows = MAX_ROWS,
    ) -> Response:
        """A page of triggers in the lake, the entries of the newest of them, and the segments ingested at or after `since`."""
        bounds = Bounds(limit=limit, entries=min(entries, MAX_ENTRIES), rows=min(rows, MAX_ROWS), before=before, since=since_seq)

        def read(catalog: Catalog) -> dict[str, Any]:
            page, ingested = Lake(catalog).batch_page(request_id, _utc(since), bounds)
            return {
                "batches": [asdict(batch) for batch in page.batches],
                "before": page.before,
                "told": sorted(page.complete_seqs),
                "entries": _entries_json(page.entries),
                "ingested": sorted(ingested),
            }

        return await json_response(read)

    return router


def _utc(instant: datetime) -> datetime:
    """Return the instant; if it has no zone, it is taken as UTC."""
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _entries_json(entries: Iterable[EntryHistory]) -> list[dict[str, Any]]:
    return [{"vin": entry.vin, **entry.to_json()} for entry in entries]
