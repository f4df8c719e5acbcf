"""`/vins/{vin}/history`, `/batches/{request_id}`, `/data/{data_id}`: merged from queues, archive and lake."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pyiceberg.catalog import Catalog

from manifold.api._document import FAILURES
from manifold.api._parameters import Before, DataId, Limit, RequestId, Vin
from manifold.api._problems import Missing
from manifold.api._sources import Sources
from manifold.api.models.entries import Batch, Batches, Data, Entry, VehicleHistory
from manifold.contracts.seq import MAX_SEQ
from manifold.history import Bounds, DataHistory
from manifold.history.merge import History

VEHICLE_PAGE, BATCH_PAGE = 100, 20  # default page sizes
LISTED_ENTRIES, MAX_LISTED_ENTRIES = 10_000, 100_000  # entries that are looked up individually: the default, and the limit
MAX_ROWS = 50_000_000  # rows of the lake that are read for one page
BYTES = "application/octet-stream"
PAYLOAD = {"content": {BYTES: {"schema": {"type": "string", "contentMediaType": BYTES}}}, "description": "the bytes"}
T = TypeVar("T")

ListedEntries = Annotated[
    int, Query(ge=0, le=MAX_LISTED_ENTRIES, description="entries that are looked at one by one, of the newest triggers first")
]
Rows = Annotated[int, Query(ge=1, le=MAX_ROWS, description="rows of the lake that are looked at for one page")]


def history_routes(sources: Sources) -> APIRouter:
    """Return the history routes."""
    router = APIRouter()

    async def query(read_history: Callable[[History], T]) -> T:
        """Run a query on the history in a thread."""

        def read(catalog: Catalog) -> T:
            return read_history(History(sources.settings, sources.blocking_redis(), catalog))

        return await sources.lake.ask(read)

    async def data_of(data_id: str) -> DataHistory:
        data = await query(lambda history: history.data(data_id))
        if data is None:
            raise Missing(f"nothing is known of data {data_id}; it was never published, or its retention has passed")
        return data

    @router.get("/vins/{vin}/history", tags=["vehicles"])
    async def vehicle(vin: Vin, limit: Limit = VEHICLE_PAGE, before: Before = MAX_SEQ) -> VehicleHistory:
        """The entries of a vehicle and their states. The first page has the newest entries; each page is sorted oldest first."""
        bounds = Bounds(limit=limit, rows=MAX_ROWS, before=before)
        page = await query(lambda history: history.vin_page(vin, bounds))
        entries = [Entry.of(entry) for entry in page.entries]
        return VehicleHistory.model_construct(vin=vin, entries=entries, before=page.before)

    @router.get("/batches/{request_id}", tags=["batches"])
    async def batches(
        request_id: RequestId,
        limit: Limit = BATCH_PAGE,
        before: Before = MAX_SEQ,
        entries: ListedEntries = LISTED_ENTRIES,
        rows: Rows = 5_000_000,
    ) -> Batches:
        """The newest triggers with this request_id, oldest first, with their numbers of vehicles and of entries by state."""
        bounds = Bounds(limit=limit, entries=entries, rows=rows, before=before)
        page = await query(lambda history: history.batches(request_id, bounds))
        batches = [Batch.of(batch) for batch in page.batches]
        return Batches.model_construct(request_id=request_id, batches=batches, before=page.before)

    @router.get("/data/{data_id}", tags=["data"], responses=FAILURES[404])
    async def data(data_id: DataId) -> Data:
        """When and how often data was published, its size, and its SHA-1."""
        data_history = await data_of(data_id)
        return Data.model_validate(data_history.facts(data_id))

    @router.get("/data/{data_id}/payload", tags=["data"], responses={200: PAYLOAD, **FAILURES[404]}, response_class=Response)
    async def payload(data_id: DataId) -> Response:
        """The bytes that are sent to vehicles."""
        data_history = await data_of(data_id)
        return Response(data_history.payload, media_type=BYTES, headers={"X-Content-Type-Options": "nosniff"})

    return router
