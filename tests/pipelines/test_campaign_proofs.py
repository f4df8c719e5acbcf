"""Campaigns are proved from the lake, and a record that contradicts a plan is named on the page and in the error."""

import csv
from datetime import timedelta
from pathlib import Path

import pytest

from manifold.campaigns.facts import Released
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import IDS
from manifold.lake.reports import open_reports
from manifold.settings import Settings
from pipelines.campaigns.proofs import publish_proofs
from tests.support.campaign_rows import NAME, finished, write
from tests.support.lake_rows import new_lake


def test_a_campaign_is_proved_and_a_falsified_one_is_not(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    catalog, reports, facts = new_lake(settings), open_reports(settings), finished()
    write(catalog, facts)
    now = datetime_of(max(fact.seq for fact in facts))

    def page(path: str) -> str:
        return (reports.read(f"campaigns/{path}") or b"").decode()

    assert publish_proofs(settings, catalog, now, days=30)["campaigns"] == 1
    assert "Proved: nothing in its record contradicts its plan." in page(f"{NAME}/index.html")
    rows = list(csv.DictReader(page(f"{NAME}/targets.csv").splitlines()))
    assert sorted(row["state"] for row in rows) == ["delivered"] * 8 + ["failed"]
    assert "proved" in page("index.html")
    assert publish_proofs(settings, catalog, now + timedelta(days=60), days=30)["campaigns"] == 0
    with pytest.raises(Permanent, match="the lake has no record of campaign 'another'"):
        publish_proofs(settings, catalog, now, campaign="another")

    second = [fact for fact in facts if isinstance(fact, Released)][1]
    catalog.load_table(IDS.identifier).delete(f"seq = {second.seq}")
    with pytest.raises(Retryable, match=f"not proved: {NAME}: .*lost release 2 is not on record; see "):
        publish_proofs(settings, catalog, now, campaign=NAME)
    assert "Not proved" in page(f"{NAME}/index.html")
    assert "findings" in page("index.html")
