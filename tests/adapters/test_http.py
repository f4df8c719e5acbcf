"""The HTTP face of a service."""

import asyncio

import httpx
import pytest
from aiohttp import web
from prometheus_client import Counter

from adapters.http import Health, serve
from contracts.errors import Permanent
from tests.servers import free_port

VISITS = Counter("sdv_test_visits", "visits of the test of the HTTP face")


async def _greet(_: web.Request) -> web.Response:
    return web.json_response({"hello": "there"})


def test_health_metrics_and_own_routes_are_served() -> None:
    port = free_port()
    health = Health(healthy=False, details={"journal": "disk full"})

    async def scenario() -> None:
        nonlocal health
        VISITS.inc()
        async with serve("127.0.0.1", port, lambda: health, [web.post("/greet", _greet)]), httpx.AsyncClient() as client:
            base = f"http://127.0.0.1:{port}"
            ill = await client.get(f"{base}/healthz")
            assert (ill.status_code, ill.json()) == (503, {"healthy": False, "journal": "disk full"})
            health = Health(healthy=True)
            well = await client.get(f"{base}/healthz")
            assert (well.status_code, well.json()) == (200, {"healthy": True})
            assert "sdv_test_visits_total 1.0" in (await client.get(f"{base}/metrics")).text
            assert (await client.post(f"{base}/greet")).json() == {"hello": "there"}

    asyncio.run(scenario())


def test_a_taken_port_is_named() -> None:
    port = free_port()

    async def scenario() -> None:
        async with serve("127.0.0.1", port, lambda: Health(healthy=True)):
            with pytest.raises(Permanent, match=f"cannot listen on 127.0.0.1:{port}"):
                async with serve("127.0.0.1", port, lambda: Health(healthy=True)):
                    pass

    asyncio.run(scenario())
