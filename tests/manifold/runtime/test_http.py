"""The HTTP server of a service."""

import asyncio

import httpx
import pytest
from aiohttp import web
from prometheus_client import Counter

from manifold.contracts.errors import Permanent
from manifold.runtime.http import Health, serve, serve_metrics
from tests.support.servers import free_port

VISITS = Counter("sdv_test_visits", "visits of the test of the HTTP face")


async def _greet(_: web.Request) -> web.Response:
    return web.json_response({"hello": "there"})


def test_health_metrics_and_custom_routes_are_served() -> None:
    port = free_port()
    health = Health(healthy=False, details={"journal": "disk full"})

    async def scenario() -> None:
        nonlocal health
        VISITS.inc()
        async with serve("127.0.0.1", port, lambda: health, [web.post("/greet", _greet)]), httpx.AsyncClient() as client:
            base = f"http://127.0.0.1:{port}"
            ill = await client.get(f"{base}/healthz")
            assert (ill.status_code, ill.json()) == (503, {"healthy": False, "journal": "disk full"})
            assert (await client.get(f"{base}/livez")).status_code == 200  # a restart would not help
            health = Health(healthy=True)
            well = await client.get(f"{base}/healthz")
            assert (well.status_code, well.json()) == (200, {"healthy": True})
            assert "sdv_test_visits_total 1.0" in (await client.get(f"{base}/metrics")).text
            assert (await client.post(f"{base}/greet")).json() == {"hello": "there"}

    asyncio.run(scenario())


def test_a_token_is_required_and_a_probe_learns_only_the_status() -> None:
    port, token = free_port(), "s3cret-token"
    health = Health(healthy=False, details={"journal": "disk full"})

    async def scenario() -> None:
        base = f"http://127.0.0.1:{port}"
        async with (
            serve("127.0.0.1", port, lambda: health, [web.post("/greet", _greet)], token=token),
            httpx.AsyncClient() as client,
        ):
            basic, shorter, foreign = f"Basic {token}".encode(), b"Bearer s3cret", b"Bearer \xfc"
            wrongs: list[dict[bytes, bytes]] = [{}, *({b"Authorization": value} for value in (basic, shorter, foreign))]
            for wrong in wrongs:
                refused = [await client.get(f"{base}/metrics", headers=wrong), await client.post(f"{base}/greet", headers=wrong)]
                assert [answer.status_code for answer in refused] == [401, 401]
                assert refused[0].headers["WWW-Authenticate"] == "Bearer"
                probed = await client.get(f"{base}/healthz", headers=wrong)
                assert (probed.status_code, probed.json()) == (503, {"healthy": False})
                assert (await client.get(f"{base}/livez", headers=wrong)).json() == {"alive": True}
            right = {"Authorization": f"Bearer {token}"}
            assert (await client.get(f"{base}/healthz", headers=right)).json()["journal"] == "disk full"
            assert (await client.get(f"{base}/metrics", headers=right)).status_code == 200
            assert (await client.post(f"{base}/greet", headers=right)).json() == {"hello": "there"}

    asyncio.run(scenario())


def test_metrics_only_are_served_from_a_thread_with_the_token() -> None:
    port = free_port()
    with serve_metrics("127.0.0.1", port, token="t0ken"):
        url = f"http://127.0.0.1:{port}/metrics"
        assert httpx.get(url).status_code == 401
        assert "python_info" in httpx.get(url, headers={"Authorization": "bearer t0ken"}).text  # schemes are case-insensitive
    with serve_metrics("127.0.0.1", port):
        assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 200
        with pytest.raises(Permanent, match=f"cannot listen on 127.0.0.1:{port}"), serve_metrics("127.0.0.1", port):
            pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "some-name", ""])
def test_without_a_token_nothing_listens_beyond_loopback(host: str) -> None:
    async def scenario() -> None:
        with pytest.raises(Permanent, match=r"MANIFOLD_HOST=.*MANIFOLD_HTTP_TOKEN"):
            async with serve(host, free_port(), lambda: Health(healthy=True)):
                pass

    asyncio.run(scenario())
    with pytest.raises(Permanent, match="MANIFOLD_HTTP_TOKEN"), serve_metrics(host, free_port()):
        pass


def test_with_a_token_it_may_listen_beyond_loopback() -> None:
    port = free_port()

    async def scenario() -> None:
        async with serve("0.0.0.0", port, lambda: Health(healthy=True), token="t0ken"), httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/metrics")).status_code == 401

    asyncio.run(scenario())


def test_a_port_in_use_is_named() -> None:
    port = free_port()

    async def scenario() -> None:
        async with serve("127.0.0.1", port, lambda: Health(healthy=True)):
            with pytest.raises(Permanent, match=f"cannot listen on 127.0.0.1:{port}"):
                async with serve("127.0.0.1", port, lambda: Health(healthy=True)):
                    pass

    asyncio.run(scenario())
