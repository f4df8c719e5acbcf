"""A real browser limited to this machine, which records the requests and errors of its page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, sync_playwright

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")


@dataclass(slots=True)
class Offline:
    """The page, the URLs beyond loopback that it requested, and its errors."""

    page: Page
    asked_outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def style(self, selector: str, name: str, pseudo: str = "") -> str:
        """The computed style of the first matching element."""
        script = "(found, [name, pseudo]) => getComputedStyle(found, pseudo || null)[name]"
        return str(self.page.locator(selector).first.evaluate(script, [name, pseudo]))


@contextmanager
def offline_page() -> Iterator[Offline]:
    """A page whose requests beyond loopback are recorded and refused."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 750})
        found = Offline(page)

        def judge(route: Route) -> None:
            if urlsplit(route.request.url).hostname in (None, "127.0.0.1"):
                route.continue_()
            else:
                found.asked_outside.append(route.request.url)
                route.abort()

        page.route("**/*", judge)
        page.on("console", lambda message: found.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: found.errors.append(str(error)))
        yield found
        browser.close()
