"""A recorder behind a faulty proxy, and a publisher that connects directly."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.manifold.recorder.harness import Harness
from tests.manifold.recorder.publisher import Platform, platform
from tests.support.careless import Cable, careless


@asynccontextmanager
async def through_cable(home: Harness) -> AsyncIterator[tuple[Cable, Platform]]:
    """Start both; they are ready once the recorder enqueues directly."""
    async with careless(home.broker.port) as cable, platform(home.broker.port) as publisher:
        home.env["MANIFOLD_MQTT_URL"] = f"mqtt://127.0.0.1:{cable.port}"
        await home.start_enqueuing()
        yield cable, publisher
