"""The quality reports under Airflow's /reports: only for logged-in users, and only report files."""

import runpy
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import SecretStr

from manifold.settings import Settings
from tests.manifold.api.desk import desk_at
from tests.support.servers import ROOT, free_port

plugin = runpy.run_path(str(ROOT / "plugins" / "reports.py"))  # as Airflow loads it
application = plugin["application"]


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    folder = tmp_path / "reports" / "runs" / "manual__2026-03-01T12:00:00+00:00"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("a run")
    (tmp_path / "reports" / "index.html").write_text("all runs")
    (tmp_path / "secret").write_text("not a report")
    (tmp_path / "reports" / ".index.html.1a2b").write_text("half written")
    found: FastAPI = application(Settings(home=tmp_path))
    return found


def test_an_anonymous_reader_logs_in_and_returns_to_the_page(app: FastAPI) -> None:
    with TestClient(app, follow_redirects=False) as stranger:
        for page in ("/index.html", "/", "/runs/x/index.html", "/nothing"):
            answer = stranger.get(page)
            asked = urlsplit(answer.headers["location"])
            assert (answer.status_code, asked.path) == (307, "/api/v2/auth/login")
            assert parse_qs(asked.query)["next"] == [f"http://testserver{page}"]
            assert "run" not in answer.text


def test_the_menu_links_to_the_pages_and_to_the_api() -> None:
    views = [ExternalViewResponse.model_validate(view) for view in plugin["Reports"].external_views]

    assert [(view.category, view.name, view.href) for view in views] == [
        ("browse", "Quality reports", "/reports/index.html"),
        ("browse", "Manifold API", "/reports/api/docs"),
    ]


def test_a_logged_in_user_reads_the_pages(app: FastAPI) -> None:
    app.dependency_overrides[get_user] = lambda: "somebody"
    with TestClient(app) as client:
        assert client.get("/").text == client.get("/index.html").text == "all runs"
        run = client.get("/runs/manual__2026-03-01T12%3A00%3A00%2B00%3A00/index.html")
        assert (run.text, run.headers["content-type"]) == ("a run", "text/html; charset=utf-8")
        assert client.get("/runs/manual__2026-03-01T12%3A00%3A00%2B00%3A00").text == "a run"


def test_a_page_runs_no_script_and_loads_nothing_from_other_hosts(app: FastAPI, tmp_path: Path) -> None:
    """Great Expectations' pages name public scripts, which would run with the reader's rights in Airflow."""
    docs = tmp_path / "reports" / "validations" / "sdv_fanout_ids" / "run"
    docs.mkdir(parents=True)
    (docs / "page.html").write_text('<script src="https://code.jquery.com/jquery.js"></script>')
    app.dependency_overrides[get_user] = lambda: "somebody"
    with TestClient(app) as client:
        for page in ("/", "/validations/sdv_fanout_ids/run/page.html"):
            directives = client.get(page).headers["content-security-policy"].split("; ")
            allowed = {name: sources for name, *sources in map(str.split, directives)}
            assert allowed.pop("default-src") == ["'none'"]
            assert "script-src" not in allowed
            assert {source for sources in allowed.values() for source in sources} <= {
                "'none'",
                "'self'",
                "'unsafe-inline'",
                "data:",
            }
            assert allowed["style-src"] == ["'self'", "'unsafe-inline'"], "otherwise the pages would be plain text"


def test_the_api_reference_is_shown_even_if_the_api_requires_a_token(tmp_path: Path) -> None:
    with desk_at(tmp_path, http_token=SecretStr("t0ken")) as desk:
        assert desk.ask("/api/v1/openapi.json").status_code == 401
        app = application(desk.settings)
        with TestClient(app, follow_redirects=False) as stranger:
            assert {stranger.get(f"/api/{name}").status_code for name in ("docs", "openapi.json")} == {307}
        app.dependency_overrides[get_user] = lambda: "somebody"
        with TestClient(app) as client:
            assert "/api/v1/vins/{vin}" in client.get("/api/openapi.json").json()["paths"]
            page = client.get("/api/docs")
            assert (page.headers["content-type"], "/api/v1/vins/{vin}" in page.text) == ("text/html; charset=utf-8", True)
            assert client.get("/api/fleet").status_code == 404, "only the description of the API"


def test_an_unresponsive_api_is_named(tmp_path: Path) -> None:
    app = application(Settings(home=tmp_path, api_port=free_port()))
    app.dependency_overrides[get_user] = lambda: "somebody"
    with TestClient(app) as client:
        answer = client.get("/api/openapi.json")
    assert answer.status_code == 503
    assert "manifold status" in answer.text


@pytest.mark.parametrize(
    "path", ["/..%2fsecret", "/%2e%2e/secret", "/runs/../../secret", "/.index.html.1a2b", "/%2fetc/passwd", "/nothing", "/a%00b"]
)
def test_no_other_file_is_served(app: FastAPI, path: str) -> None:
    app.dependency_overrides[get_user] = lambda: "somebody"
    with TestClient(app) as client:
        assert client.get(path).status_code == 404
