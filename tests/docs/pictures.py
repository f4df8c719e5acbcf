"""Pictures of what a replayed page leaves in Airflow and in the quality reports."""

import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

SETTLED_MS = 3000  # fonts, charts, and what still moves
DAG = "ingest_archives"


def log_in(page: Page, airflow: str, password: str, user: str = "operator") -> None:
    """Through Airflow's own form, which whoever is not logged in is sent to."""
    page.goto(airflow)
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Dags").first.wait_for()


def take(airflow: str, password: str, folder: Path) -> None:
    """The list of the DAGs, the runs of one, and the index of the reports."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 750})
        page.set_default_timeout(120_000)
        log_in(page, airflow, password)
        _keep(page, f"{airflow}/dags", folder / "airflow-dags.png", ready="verify_queues", then="[aria-label='Show table view']")
        _keep(page, f"{airflow}/dags/{DAG}/runs", folder / "airflow-runs.png", ready="saturday")
        page.set_viewport_size({"width": 1000, "height": 350})
        _keep(page, f"{airflow}/reports/index.html", folder / "report-index.png", ready="Quality reports")
        browser.close()


def _keep(page: Page, address: str, file: Path, *, ready: str, then: str = "") -> None:
    page.goto(address)
    page.get_by_text(ready).first.wait_for()
    if then:
        page.locator(then).first.click()
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=file)
