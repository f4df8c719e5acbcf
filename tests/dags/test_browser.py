"""The Airflow UI as an operator uses it in a real browser. PICTURES=1 updates the pictures in docs/img."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from manifold.contracts.tables import IDS
from manifold.lake.reports import run_page
from manifold.sandbox.platform import airflow
from manifold.sandbox.platform.airflow_users import OPERATOR, password_of
from tests.dags.running import DAGS, VINS, Ingested, Platform
from tests.docs.pictures import log_in
from tests.support.browser import CHROMIUM, needs_chromium
from tests.support.servers import ROOT, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_chromium]
DAG, BACKFILL = "ingest_archives", "backfill_archives"
SEEN_MS = 60_000
DETAILS: dict[str, Any] = {"clip": {"x": 312, "y": 62, "width": 888, "height": 688}}  # without the grid at the left
ENDED_S = 240


@pytest.fixture(scope="module")
def browser(running: Platform) -> Iterator[Page]:
    """A browser in which the operator is logged in."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 750})
        page.set_default_timeout(SEEN_MS)
        expect.set_options(timeout=SEEN_MS)
        log_in(page, airflow.url(running.settings), password_of(running.settings, OPERATOR))
        show_nothing(page)
        yield page
        browser.close()


def show_nothing(page: Page) -> None:
    """Leave the page: an open Airflow page polls its server and animates all the time."""
    page.goto("about:blank")


@pytest.fixture
def chromium(browser: Page) -> Iterator[Page]:
    """The browser, for one test."""
    yield browser
    show_nothing(browser)


@pytest.fixture
def page(chromium: Page, running: Platform) -> Page:
    """The page of the DAG."""
    chromium.goto(f"{airflow.url(running.settings)}/dags/{DAG}")
    expect(chromium.get_by_test_id("trigger-dag-button")).to_be_visible()
    return chromium


def picture(seen: Page | Locator, name: str, **more: Any) -> None:
    """Save a screenshot for the documentation if PICTURES is set."""
    if os.environ.get("PICTURES"):
        page = seen if isinstance(seen, Page) else seen.page
        page.wait_for_timeout(2500)  # fonts and animations
        seen.screenshot(path=ROOT / "docs" / "img" / f"{name}.png", **more)


def ended(running: Platform, known: set[str]) -> dict[str, Any]:
    """The manual run not in `known`, once it has ended."""
    (run,) = running.ended(DAG, "manual", known, 1, within_s=ENDED_S)
    return run


def form(page: Page, kind: str) -> Locator:
    """The form behind the Trigger button."""
    page.get_by_test_id("trigger-dag-button").click()
    dialog = page.get_by_role("dialog").filter(has_text="Run Parameters")
    dialog.get_by_text(kind, exact=True).click()
    return dialog


def choose(page: Page, field: Locator, day: datetime) -> None:
    field.click()
    page.get_by_placeholder("YYYY/MM/DD").locator("visible=true").last.fill(f"{day:%Y/%m/%d}")
    page.get_by_placeholder("HH:mm").locator("visible=true").last.fill("00:00")
    page.keyboard.press("Escape")


@contextmanager
def a_file_where_the_archive_has_a_folder(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    away = folder.rename(folder.with_name("_away"))
    folder.write_text("in the way")
    yield
    folder.unlink()
    away.rename(folder)


def test_an_operator_triggers_a_run_with_params(page: Page, running: Platform) -> None:
    known = running.run_ids(DAG, "manual")
    dialog = form(page, "Single Run")
    dialog.locator("label[id='switch:element_dry_run']").click()
    picture(page, "airflow-trigger")
    dialog.get_by_test_id("trigger-dag-submit").click()
    expect(dialog).to_be_hidden()
    show_nothing(page)

    run = ended(running, known)
    assert run["state"] == "success"
    assert run["conf"] == {"from": None, "to": None, "flush": True, "dry_run": True}
    states = running.api.task_states(DAG, run["dag_run_id"])
    assert states == {"discover": "success"} | dict.fromkeys(("ingest", "audit", "publish", "populate"), "skipped")
    page.goto(f"{airflow.url(running.settings)}/dags/{DAG}/runs/{run['dag_run_id']}")
    expect(page.get_by_text("Skipped").first).to_be_visible()
    picture(page, "airflow-run")


def test_every_dag_has_a_runbook_and_the_ui_shows_it(chromium: Page, running: Platform) -> None:
    parts = ("Do not trigger it", "When it fails", "To back out")
    dag_ids = [dag["dag_id"] for dag in running.api._request("GET", "/dags")["dags"]]
    assert set(DAGS) < set(dag_ids)
    for dag_id in dag_ids:
        stored = running.api._request("GET", f"/dags/{dag_id}/details")["doc_md"]
        assert [part for part in parts if part not in stored] == [], dag_id
    chromium.goto(f"{airflow.url(running.settings)}/dags/collect_garbage")
    chromium.get_by_role("button", name="Dag Docs").click()
    for part in parts:
        expect(chromium.get_by_role("dialog").get_by_text(part).first).to_be_visible()
    picture(chromium, "airflow-runbook")


def test_the_audit_task_links_to_its_report_and_to_the_trends(chromium: Page, running: Platform, ingested: Ingested) -> None:
    chromium.goto(f"{airflow.url(running.settings)}/dags/{DAG}/runs/{ingested.run_id}")
    expect(chromium.get_by_text("5 Task Instances")).to_be_visible()
    picture(chromium, "airflow-ingested", **DETAILS)
    chromium.goto(f"{airflow.url(running.settings)}/dags/{DAG}/runs/{ingested.run_id}/tasks/audit/details")
    button = chromium.get_by_role("link", name="Quality report")
    expect(button).to_be_visible()
    picture(chromium, "airflow-report", **DETAILS)
    chromium.goto(str(button.get_attribute("href")))
    expect(chromium.get_by_text(ingested.run_id).first).to_be_visible()
    picture(chromium, "report-run")
    chromium.goto(f"{airflow.url(running.settings)}/reports/trends.html")
    chart = chromium.get_by_role("img", name="sdv_fanout_ids: at most").first
    expect(chart).to_be_visible()
    expect(chart).to_have_js_property("complete", True)
    assert chart.evaluate("image => image.naturalWidth") > 0  # zero if the page's policy blocks the image


def test_data_docs_are_styled_and_request_no_other_host(chromium: Page, running: Platform, ingested: Ingested) -> None:
    asked: set[str | None] = set()
    chromium.on("request", lambda request: asked.add(urlsplit(request.url).hostname))
    chromium.goto(f"{airflow.url(running.settings)}/reports/{quote(run_page(ingested.run_id))}")
    chromium.get_by_role("link", name="every rule").first.click()

    expect(chromium.locator(".alert").first).to_have_css("background-color", "rgb(226, 227, 229)")
    assert asked == {urlsplit(airflow.url(running.settings)).hostname}


def test_an_operator_backfills_days_from_the_ui(chromium: Page, running: Platform) -> None:
    page = chromium
    page.goto(f"{airflow.url(running.settings)}/dags/{BACKFILL}")
    known = running.run_ids(BACKFILL, "backfill")
    first = datetime(2026, 5, 4, tzinfo=UTC)
    for hours, request_id in ((-1, "ui_early"), (6, "ui_day"), (23, "ui_late"), (49, "ui_after")):
        running.archive_batch(first + timedelta(hours=hours), request_id)
    dialog = form(page, "Backfill")
    fields = dialog.get_by_test_id("datetime-input")
    choose(page, fields.nth(0), first)
    choose(page, fields.nth(1), first + timedelta(days=6))
    dialog.locator("input[name='max_active_runs']").fill("1")
    expect(dialog.get_by_text("7 runs will be triggered")).to_be_visible()
    picture(page, "airflow-backfill")
    choose(page, fields.nth(1), first + timedelta(days=1))
    expect(dialog.get_by_text("2 runs will be triggered")).to_be_visible()
    dialog.get_by_role("button", name="Run Backfill").click()
    expect(dialog).to_be_hidden()
    show_nothing(page)

    made = running.ended(BACKFILL, "backfill", known, 2, within_s=ENDED_S)
    assert {run["state"] for run in made} == {"success"}
    assert [run["data_interval_start"][:10] for run in made] == ["2026-05-04", "2026-05-05"]
    assert [running.api.result(BACKFILL, run["dag_run_id"], "discover")["segments"] for run in made] == [4, 0]
    taken = running.values(IDS, "request_id")
    assert [taken.count(f"ui_{each}") for each in ("early", "day", "late", "after")] == [0, len(VINS), len(VINS), 0]


def test_a_cleared_task_runs_again(chromium: Page, running: Platform) -> None:
    page, known = chromium, running.run_ids(DAG, "manual")
    with a_file_where_the_archive_has_a_folder(running.settings.home / "archive" / "outcome"):
        run_id = running.api.trigger_dag(DAG, {"dry_run": True})
        run = ended(running, known)
    assert run["state"] == "failed"

    page.goto(f"{airflow.url(running.settings)}/dags/{DAG}/runs/{run_id}/tasks/discover")
    expect(page.get_by_text("Failed").first).to_be_visible()
    page.get_by_role("button", name=re.compile("clear", re.IGNORECASE)).first.click()
    dialog = page.get_by_role("dialog").filter(has_text="discover").last
    picture(dialog, "airflow-clear")
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog).to_be_hidden()
    show_nothing(page)

    wait_until(lambda: running.api.run_state(DAG, run_id) != "failed", what="the clearing")
    state = running.api.wait(DAG, run_id, within_s=ENDED_S)
    assert state == "success", running.api.task_log(DAG, run_id, "discover", attempt=2)
