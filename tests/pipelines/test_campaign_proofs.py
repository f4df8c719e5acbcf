"""Campaigns are proved from the lake, and a record that contradicts a plan is named on the page and in the error."""

import csv
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from manifold.campaigns.facts import Ended, Fact, Recorded, Released
from manifold.contracts.campaigns import encode
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import CAMPAIGN_EVENTS, IDS, OUTCOMES
from manifold.lake.reports import open_reports
from manifold.settings import Settings
from pipelines.campaigns.proofs import publish_proofs
from tests.manifold.campaigns.plans import NOW, document, fleet_here, proposed, vins
from tests.support.lake_rows import append, new_lake

NAME = "maps-47"
PLAN = document(number=9, waves=[{"name": "first", "size": 3}, {"name": "rest", "size": "rest"}], rate=2)


def finished() -> list[Fact]:
    """The record of a campaign for nine vehicles, of which one fails."""
    world = proposed(PLAN, fleet_here(9, failing=frozenset({vins(9)[4]})))
    world.run(NOW + 2 * 3_600_000)
    return list(world.facts)


def write(catalog: Catalog, facts: Iterable[Fact]) -> None:
    """Write the rows that ingest makes of these facts."""
    for fact in facts:
        at = datetime_of(fact.seq)
        if isinstance(fact, Recorded):
            order = fact.command
            named = {"campaign": NAME, "seq": fact.seq, "at": at, "do": "order", "by": order.by, "epoch": order.epoch}
            append(catalog, CAMPAIGN_EVENTS, [named | {"seen": order.seen, "record": encode(order)}])
        elif isinstance(fact, Released):
            named = {"ts": at, "request_id": NAME, "seq": fact.seq, "data_id": "map_47", "applied": True, "campaign": NAME}
            append(catalog, IDS, [named | {"vin": vin, "wave": fact.wave, "step": fact.step} for vin in fact.vins])
        elif isinstance(fact, Ended):
            ended = {"vin": fact.vin, "seq": fact.release, "outcome": fact.ending, "accepted_at": datetime_of(fact.release)}
            append(catalog, OUTCOMES, [ended | {"ended_at": at, "recorded_seq": fact.seq}])


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
    with pytest.raises(Permanent, match="the lake has no order to campaign 'another'"):
        publish_proofs(settings, catalog, now, campaign="another")

    second = [fact for fact in facts if isinstance(fact, Released)][1]
    catalog.load_table(IDS.identifier).delete(f"seq = {second.seq}")
    with pytest.raises(Retryable, match=f"not proved: {NAME}: .*lost release 2 is not on record; see "):
        publish_proofs(settings, catalog, now, campaign=NAME)
    assert "Not proved" in page(f"{NAME}/index.html")
    assert "findings" in page("index.html")
