"""Data Docs in a browser limited to loopback, from a folder and as served by Airflow. PICTURES=1 draws one."""

import os
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn
from airflow.api_fastapi.core_api.security import get_user
from playwright.sync_api import expect
from pyspark.sql import SparkSession

from manifold.lake.reports import run_page
from manifold.settings import Settings
from tests.expectations.rows import RUN, SEQ, entry, judged
from tests.support.browser import needs_chromium, offline_page
from tests.support.servers import ROOT, free_port, listens, wait_until

pytestmark = [pytest.mark.slow, needs_chromium]
TABLE = "sdv_fanout_ids"


@pytest.fixture(scope="module")
def home(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the reports of a run of two entries, one of them with an invalid VIN."""
    home = tmp_path_factory.mktemp("home")
    judged(spark, {TABLE: [entry(), entry(SEQ + 2, "1HGCM82633A00435O")]}, home / "reports")
    return home


@pytest.fixture(params=["a folder", "airflow"])
def reports(request: pytest.FixtureRequest, home: Path) -> Iterator[str]:
    """The URL of the reports; under Airflow, that of the plugin's application with a logged-in reader."""
    if request.param == "a folder":
        yield (home / "reports").as_uri()
        return
    app = runpy.run_path(str(ROOT / "plugins" / "reports.py"))["application"](Settings(home=home))
    app.dependency_overrides[get_user] = lambda: "somebody"
    server = uvicorn.Server(uvicorn.Config(app, port=free_port(), log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: listens(server.config.port), what="the reports to be served")
    yield f"http://127.0.0.1:{server.config.port}"
    server.should_exit = True
    thread.join()


def test_the_pages_are_styled_and_request_no_other_host(reports: str) -> None:
    with offline_page() as seen:
        seen.page.goto(f"{reports}/{quote(run_page(RUN))}")
        seen.page.get_by_role("row", name=TABLE).get_by_role("link", name="every rule").click()
        expect(seen.page.get_by_text("an entry cannot be queued").first).to_be_visible()

        assert seen.style(".alert", "backgroundColor") == "rgb(226, 227, 229)", "Bootstrap's"
        assert seen.style(".fa-times", "content", "::before") == '"✘"'
        kept = seen.page.get_by_role("row", name="kept")
        assert kept.count() > 1
        seen.page.get_by_label("only broken ones").check()
        expect(kept.first).to_be_hidden()
        expect(seen.page.get_by_role("row", name="broken").first).to_be_visible()
        if os.environ.get("PICTURES") and reports.startswith("http"):
            seen.page.screenshot(path=ROOT / "docs" / "img" / "data-docs.png")
        seen.page.get_by_text("Show more info").click()
        expect(seen.page.get_by_text("Great Expectations Version")).to_be_visible()

        seen.page.get_by_role("link", name=TABLE, exact=True).first.click()
        expect(seen.page.get_by_text("This Expectation suite currently contains")).to_be_visible()
        assert seen.style(".alert", "backgroundColor") == "rgb(226, 227, 229)"
        seen.page.get_by_role("link", name="all runs").click()
        expect(seen.page.get_by_role("heading", name="Quality reports")).to_be_visible()
        assert (seen.asked_outside, seen.errors) == ([], [])


def test_reports_share_one_style_sheet_next_to_their_pages(home: Path) -> None:
    files = [file for file in (home / "reports").rglob("*") if file.is_file()]

    assert {file.suffix for file in files} == {".html", ".json", ".css"}
    assert sum(file.stat().st_size for file in (home / "reports" / "static").iterdir()) < 200_000
