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

VEHICLE_PAGE, BATCH_PAGE, LOOKED_AT = 100, 20, 10_000
MAX_LOOKED_AT, MAX_ROWS = 100_000, 50_000_000
BYTES = "application/octet-stream"
PAYLOAD = {"content": {BYTES: {"schema": {"type": "string", "contentMediaType": BYTES}}}, "description": "the bytes"}
T = TypeVar("T")

Looked = Annotated[
    int, Query(ge=0, le=MAX_LOOKED_AT, description="entries that are looked at one by one, of the newest triggers first")
]
Rows = Annotated[int, Query(ge=1, le=MAX_ROWS, description="rows of the lake that are looked at for one page")]


def history_routes(sources: Sources) -> APIRouter:
    """Return the history routes."""
    router = APIRouter()

    async def ask(question: Callable[[History], T]) -> T:
        def read(catalog: Catalog) -> T:
            return question(History(sources.settings, sources.blocking(), catalog))

        return await sources.lake.ask(read)

    async def data_of(data_id: str) -> DataHistory:
        found = await ask(lambda history: history.data(data_id))
        if found is None:
            raise Missing(f"nothing is known of data {data_id}; it was never published, or its retention has passed")
        return found

    @router.get("/vins/{vin}/history", tags=["vehicles"])
    async def vehicle(vin: Vin, limit: Limit = VEHICLE_PAGE, before: Before = MAX_SEQ) -> VehicleHistory:
        """The entries of a vehicle and their states: the newest ones, oldest first; older ones on the next pages."""
        bounds = Bounds(limit=limit, rows=MAX_ROWS, before=before)
        page = await ask(lambda history: history.vin_page(vin, bounds))
        return VehicleHistory.model_construct(vin=vin, entries=[Entry.of(entry) for entry in page.entries], before=page.before)

    @router.get("/batches/{request_id}", tags=["batches"])
    async def batches(
        request_id: RequestId,
        limit: Limit = BATCH_PAGE,
        before: Before = MAX_SEQ,
        entries: Looked = LOOKED_AT,
        rows: Rows = 5_000_000,
    ) -> Batches:
        """The newest triggers with this request_id, oldest first: how many vehicles each names, and where their entries stand."""
        bounds = Bounds(limit=limit, entries=entries, rows=rows, before=before)
        page = await ask(lambda history: history.batches(request_id, bounds))
        batches = [Batch.of(batch) for batch in page.batches]
        return Batches.model_construct(request_id=request_id, batches=batches, before=page.before)

    @router.get("/data/{data_id}", tags=["data"], responses=FAILURES[404])
    async def data(data_id: DataId) -> Data:
        """What is known of data: when it was published, how often, and how large it is."""
        return Data.model_validate((await data_of(data_id)).facts(data_id))

    @router.get("/data/{data_id}/payload", tags=["data"], responses={200: PAYLOAD, **FAILURES[404]}, response_class=Response)
    async def payload(data_id: DataId) -> Response:
        """The bytes that vehicles get."""
        found = await data_of(data_id)
        return Response(found.payload, media_type=BYTES, headers={"X-Content-Type-Options": "nosniff"})

    return router
