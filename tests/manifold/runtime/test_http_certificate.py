"""HTTPS with certificate and key in two files, as in a Kubernetes Secret, and its clients."""

import asyncio
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from dispatcher._broker_api import BrokerApi
from manifold.contracts.errors import Retryable
from manifold.runtime import renewal
from manifold.runtime.http import Health, serve, serve_metrics
from manifold.runtime.tls import verified, web_server_context
from manifold.settings import Settings
from tests.stores.identities import new_identity
from tests.support.servers import free_port, wait_until

HEALTHY = partial(Health, healthy=True)


@pytest.fixture
def mounted(tmp_path: Path) -> Settings:
    """A service whose certificate, key and CA are mounted."""
    identity, port = new_identity("first"), free_port()
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    identity.write(certificate, key)
    ca = str(identity.write_authority(tmp_path / "ca.crt"))
    return Settings(home=tmp_path, http_certificate=str(certificate), http_key=str(key), tls_ca=ca, recorder_port=port)


def test_only_https_is_served_and_addresses_show_it(mounted: Settings) -> None:
    port, url = mounted.recorder_port, mounted.recorders[0]

    async def scenario() -> None:
        async with serve("127.0.0.1", port, HEALTHY, tls_files=mounted.http_tls_files):
            async with httpx.AsyncClient(verify=verified(mounted, url)) as client:
                assert (await client.get(f"{url}/healthz")).json() == {"healthy": True}
                with pytest.raises(httpx.RemoteProtocolError):
                    await client.get(f"http://127.0.0.1:{port}/healthz")
            async with httpx.AsyncClient() as stranger:  # trusts the system's CAs only
                with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                    await stranger.get(f"{url}/healthz")

    asyncio.run(scenario())
    assert url == f"https://127.0.0.1:{port}"
    assert mounted.api.startswith("https://")


def test_plain_http_reads_no_ca() -> None:
    assert verified(Settings(), "http://127.0.0.1:1").cert_store_stats() == {"x509": 0, "crl": 0, "x509_ca": 0}


def test_metrics_only_are_served_over_https_too(mounted: Settings) -> None:
    port = mounted.recorder_port
    with serve_metrics("127.0.0.1", port, tls_files=mounted.http_tls_files):
        url = f"https://127.0.0.1:{port}/metrics"
        assert "python_info" in httpx.get(url, verify=verified(mounted, url)).text


def test_certificate_and_key_are_renewed_while_serving(
    mounted: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "CHECK_INTERVAL_S", 0.01)
    url = mounted.recorders[0]

    async def scenario() -> None:
        async with serve("127.0.0.1", mounted.recorder_port, HEALTHY, tls_files=mounted.http_tls_files):
            second = new_identity("second")
            second.write(tmp_path / "tls.crt", tmp_path / "tls.key")
            second.write_authority(tmp_path / "ca.crt")
            renewed = False
            while not renewed:
                try:
                    async with httpx.AsyncClient(verify=verified(mounted, url)) as client:
                        renewed = (await client.get(f"{url}/livez")).is_success
                except httpx.ConnectError:  # the first certificate is still served
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_the_emqx_api_is_called_over_https_and_verified_by_the_settings(mounted: Settings) -> None:
    port = mounted.recorder_port
    known = mounted.model_copy(update={"emqx_api_url": f"https://127.0.0.1:{port}/api/v5"})

    async def nobody(_: web.Request) -> web.Response:
        return web.json_response({"code": "CLIENTID_NOT_FOUND"}, status=404)

    async def ask(settings: Settings) -> object:
        async with (
            serve("127.0.0.1", port, HEALTHY, [web.get("/api/v5/clients/V", nobody)], tls_files=mounted.http_tls_files),
            BrokerApi(settings) as api,
        ):
            return await api.session("V")

    assert asyncio.run(ask(known)) is None
    with pytest.raises(Retryable, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask(known.model_copy(update={"tls_ca": ""})))
    with pytest.raises(Retryable, match=r"tls_ca=.*cannot be read"):
        asyncio.run(ask(known.model_copy(update={"tls_ca": f"{known.tls_ca}.gone"})))


def test_a_certificate_that_cannot_be_read_is_logged_once_and_its_renewal_too(
    mounted: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "CHECK_INTERVAL_S", 0.001)
    checks = count()
    written_at = renewal.written_at

    def counted(file: str) -> int:
        next(checks)
        return written_at(file)

    monkeypatch.setattr(renewal, "written_at", counted)

    async def scenario() -> list[str]:
        files = mounted.http_tls_files
        assert files is not None
        with capture_logs() as logged:
            task = asyncio.create_task(renewal.keep_renewed(web_server_context(files), files))
            await asyncio.sleep(0)
            (tmp_path / "tls.crt").rename(tmp_path / "away.crt")
            begun = next(checks)
            await asyncio.to_thread(wait_until, lambda: next(checks) >= begun + 50)
            new_identity("second").write(tmp_path / "tls.crt", tmp_path / "tls.key")
            await asyncio.to_thread(wait_until, lambda: len(logged) >= 2)
            task.cancel()
        return [line["event"] for line in logged]

    events = asyncio.run(scenario())

    assert events == ["renewed certificate or key cannot be read; the old ones stay in use", "certificate renewed"]
