"""The page /api/v1/docs in a browser limited to loopback. PICTURES=1 draws its picture in docs/img."""

import os

import httpx
import pytest
from playwright.sync_api import expect

from manifold.api._docs_page import docs_page
from tests.manifold.api.desk import Desk
from tests.support.browser import needs_chromium, offline_page
from tests.support.servers import ROOT


@needs_chromium
@pytest.mark.slow
def test_the_page_describes_every_request_and_contacts_no_other_host(desk: Desk) -> None:
    document = desk.get("/openapi.json").json()
    with offline_page() as seen:
        seen.page.goto(f"{desk.settings.api}/api/v1/docs")
        for path, methods in document["paths"].items():
            shown = seen.page.get_by_role("group").get_by_text(path, exact=True)
            expect(shown).to_have_count(len(methods))
            expect(shown.first).to_be_visible()
        assert seen.style(".method", "backgroundColor") == "rgb(23, 112, 58)"

        batches = seen.page.locator("details", has_text="/api/v1/batches/{request_id}")
        batches.locator("summary").click()
        expect(batches.get_by_text("integer, at least 1, at most 1000, default 20")).to_be_visible()
        expect(batches.get_by_text('"request_id": "task_map_7"')).to_be_visible()
        if os.environ.get("PICTURES"):
            seen.page.screenshot(path=ROOT / "docs" / "img" / "api-docs.png")
        batches.get_by_role("link", name="Batches").click()
        expect(seen.page.get_by_role("heading", name="Batches", exact=True)).to_be_in_viewport()
        assert (seen.asked_outside, seen.errors) == ([], [])

        seen.page.get_by_role("link", name="openapi.json").click()
        assert seen.page.url == f"{desk.settings.api}/api/v1/openapi.json"


def test_the_page_runs_no_script(desk: Desk) -> None:
    answer: httpx.Response = desk.get("/docs")

    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script" not in answer.text


def test_descriptions_are_escaped() -> None:
    about = {"title": "x", "version": "1", "description": "<img src=x> and `<b>`"}
    page = docs_page({"openapi": "3.1.0", "info": about, "paths": {}, "components": {"schemas": {}}})

    assert "&lt;img src=x&gt; and <code>&lt;b&gt;</code>" in page
