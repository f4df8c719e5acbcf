"""docs/reference/metrics.md lists every metric that the services expose, and no other."""

import re

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from manifold.settings import Settings
from tests.support.servers import ROOT

ROW = re.compile(r"^\| `(manifold_\w+)` \| (\w+) \|", re.MULTILINE)


@pytest.mark.slow
def test_the_page_lists_every_exposed_metric_with_its_type(platform: Settings) -> None:
    exposed: dict[str, str] = {}
    services = (platform.recorder_port, platform.tap_port, platform.dispatcher_port, platform.api_port, platform.campaigner_port)
    for port in services:
        page = httpx.get(f"http://{platform.host}:{port}/metrics", timeout=10).text
        for family in text_string_to_metric_families(page):
            if family.name.startswith("manifold_") and not family.name.endswith("_created"):
                exposed[family.name + "_total" if family.type == "counter" else family.name] = family.type

    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    listed = {name: kind for name, kind in ROW.findall(page) if not name.startswith("manifold_stream_")}  # no stream runs here

    assert listed == exposed
