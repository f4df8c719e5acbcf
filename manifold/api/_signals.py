"""`/signals/{device_id}`: the signals of a device and their processing results."""

from typing import Annotated

from fastapi import APIRouter, Path
from pyiceberg.catalog import Catalog

from manifold.api._parameters import Before, Limit
from manifold.api._sources import Sources
from manifold.api.models.signals import Signals
from manifold.contracts.seq import MAX_SEQ
from manifold.contracts.signals.messages import DEVICE_ID, MAX_DEVICE_ID
from manifold.history.signals import DeviceSignals, device_signals

PAGE = 100
DeviceId = Annotated[
    str,
    Path(
        pattern=f"^{DEVICE_ID.pattern}$",
        min_length=1,
        max_length=MAX_DEVICE_ID,
        examples=["device-123"],
        description="the device: 1 to 100 of A-Z a-z 0-9 _ -",
    ),
]


def signal_routes(sources: Sources) -> APIRouter:
    """Return the signal routes."""
    router = APIRouter(tags=["signals"])

    @router.get("/signals/{device_id}")
    async def show(device_id: DeviceId, limit: Limit = PAGE, before: Before = MAX_SEQ) -> Signals:
        """The signals of a device, including signals that are not ingested yet. The first page has the newest ones."""

        def read(catalog: Catalog) -> DeviceSignals:
            return device_signals(sources.settings, catalog, device_id, limit=limit, before=before)

        return Signals.of(await sources.lake.ask(read))

    return router
