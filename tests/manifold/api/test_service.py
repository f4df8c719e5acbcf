"""The HTTP service around the routes: health, token, metrics, errors and shutdown."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from redis.asyncio import Redis

from manifold.api._sources import Sources
from tests.manifold.api.desk import Desk, api_of, desk_at, settings_at
from tests.support.lake_rows import new_lake
from tests.support.servers import Server, free_port, start_redis, wait_until

PROBLEM = "application/problem+json"


def test_the_api_is_healthy_when_redis_and_lake_respond(desk: Desk) -> None:
    assert desk.ask("/healthz").json() == {"healthy": True, "redis": True, "lake": True}


def test_the_api_stays_healthy_after_redis_closed_idle_connections(own_redis: Server, tmp_path: Path) -> None:
    """Redis closes idle connections with `timeout 1`."""

    async def health() -> list[object]:
        sources = Sources(settings_at(tmp_path, own_redis.port))
        async with sources.open():
            before = await sources.health()
            async with Redis(port=own_redis.port) as redis:
                assert await redis.client_kill_filter(_type="normal", skipme=True) > 0
            return [each.details["redis"] for each in (before, await sources.health())]

    assert asyncio.run(health()) == [True, True]


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/nowhere", 404, "/api/v1/nowhere"),
        ("/vins/two%20words", 422, "vin=two words: string should match pattern"),
        (f"/vins/{'V' * 65}", 422, "at most 64 characters"),
        ("/vins/V?limit=0", 422, "limit=0: input should be greater than or equal to 1"),
        ("/vins/V?limit=1001", 422, "less than or equal to 1000"),
        ("/vins/V?limit=many", 422, "limit=many: input should be a valid integer"),
        (f"/vins/V?after={1 << 63}", 422, "less than or equal to 9223372036854775807"),
        ("/vins/V?limt=3", 422, "limt=3: is no parameter here; there are after, limit"),
        ("/fleet?fresh=yes", 422, "fresh=yes: is no parameter here: there are none"),
        ("/quarantine?stream=other", 422, "'trigger'"),
        ("/quarantine?before=yesterday", 422, "before=yesterday"),
        ("/quarantine?before=999999999999999999_1", 422, "before=999999999999999999_1: string should match pattern"),
        (f"/vins/V?limit={'9' * 5000}", 422, "…"),
    ],
)
def test_an_error_names_parameter_value_and_remedy(desk: Desk, path: str, status: int, detail: str) -> None:
    answer = desk.get(path)

    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    problem = answer.json()
    assert (problem["status"], problem["type"]) == (status, "about:blank")
    assert problem["title"] == {404: "Not Found", 422: "Unprocessable Content"}[status], "the reason phrase of RFC 9110"
    assert detail in problem["detail"]
    assert len(answer.content) < 2000


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "HEAD"])
def test_the_api_is_read_only(desk: Desk, method: str) -> None:
    answer = desk.ask("/api/v1/vins/V", method)

    assert (answer.status_code, answer.headers["allow"], answer.headers["content-type"]) == (405, "GET", PROBLEM)


def test_requests_are_counted_by_route_and_not_by_path(desk: Desk) -> None:
    def counted() -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(desk.ask("/metrics").text)
        (family,) = [family for family in families if family.name == "manifold_api_requests"]
        return {(s.labels["route"], s.labels["status"]): s.value for s in family.samples if s.name.endswith("_total")}

    before = counted()
    desk.get("/vins/COUNTED")
    desk.get("/vins/COUNTED?limit=0")
    desk.get("/no/such/route")
    after = counted()

    for key in (("/api/v1/vins/{vin}", "200"), ("/api/v1/vins/{vin}", "422"), ("none", "404")):
        assert after[key] == before.get(key, 0) + 1
    assert not any("COUNTED" in route for route, _ in after)


def test_without_redis_and_lake_the_api_starts_reports_it_and_recovers(tmp_path: Path) -> None:
    port = free_port()
    settings = settings_at(tmp_path / "home", port)
    settings.home.mkdir()
    (settings.home / "lake").write_text("no folder")  # so no catalog can be created in it
    redis: Server | None = None
    try:
        with api_of(settings, tmp_path / "api.log", healthy=False):
            desk = Desk(settings, None, None)  # type: ignore[arg-type]
            wait_until(lambda: len(desk.ask("/healthz").json().get("problems", ())) == 2)
            asked = [desk.get(path) for path in ("/vins/V", "/fleet", "/queues", "/quarantine", "/lake/freshness")]
            assert {answer.status_code for answer in asked} == {503}
            assert all(answer.headers["content-type"] == PROBLEM and answer.headers["retry-after"] for answer in asked)
            assert "Traceback" not in "".join(answer.text for answer in asked)

            (settings.home / "lake").unlink()
            new_lake(settings)
            redis = start_redis(tmp_path / "redis", port=port)

            wait_until(lambda: desk.ask("/healthz").status_code == 200)
            assert desk.get("/vins/V").status_code == 200
    finally:
        if redis:
            redis.stop()


def test_a_token_is_required_and_probes_get_no_details(tmp_path: Path) -> None:
    with desk_at(tmp_path, api_host="127.0.0.1", http_token=SecretStr("t0ken")) as desk:

        def asked(path: str, **headers: str) -> httpx.Response:
            return desk.ask(path, headers=headers)

        right: dict[str, Any] = {"Authorization": "Bearer t0ken"}
        for path in ("/api/v1/vins/V", "/api/v1/openapi.json", "/metrics", "/api/v1/nowhere"):
            refused = asked(path), asked(path, Authorization="Bearer wrong"), asked(path, Authorization="Basic t0ken")
            assert {answer.status_code for answer in refused} == {401}
            assert {answer.headers["www-authenticate"] for answer in refused} == {"Bearer"}
            assert {answer.headers["content-type"] for answer in refused} == {PROBLEM}
            assert asked(path, **right).status_code == (404 if path.endswith("nowhere") else 200)
        assert asked("/livez").json() == {"alive": True}
        assert asked("/healthz").json() == {"healthy": True}
        assert asked("/healthz", **right).json() == {"healthy": True, "redis": True, "lake": True}


@pytest.mark.parametrize(("setting", "named"), [("host", "MANIFOLD_HOST"), ("api_host", "MANIFOLD_API_HOST")])
def test_without_a_token_the_api_does_not_listen_beyond_loopback(tmp_path: Path, setting: str, named: str) -> None:
    settings = settings_at(tmp_path, 1, **{setting: "0.0.0.0"})

    refused = pytest.raises(RuntimeError, match=rf"ended with 2: api: {named}='0.0.0.0' is not loopback.*MANIFOLD_HTTP_TOKEN")
    with refused, api_of(settings, tmp_path / "api.log"):
        pass


def test_a_port_in_use_is_reported_with_the_setting_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_at(tmp_path, 1, api_port=taken.getsockname()[1])
        refused = pytest.raises(RuntimeError, match=r"api: cannot listen on 127\.0\.0\.1:\d+ .*MANIFOLD_API_PORT")
        with refused, api_of(settings, tmp_path / "api.log", healthy=False):
            pass


def test_on_sigterm_the_api_exits_with_status_0(tmp_path: Path) -> None:
    with desk_at(tmp_path) as desk:
        with httpx.Client(base_url=desk.settings.api, trust_env=False) as client:
            assert client.get("/healthz").status_code == 200  # and the connection stays open
            desk.api.process.terminate()
            assert desk.api.process.wait(30) == 0
        assert "api stopped" in desk.api.log.read_text()
