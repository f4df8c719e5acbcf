"""Data that an open campaign will release is needed, although no entry refers to it yet."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from manifold.campaigns.quantities import instant_ms
from manifold.contracts import campaigns as r
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import CAMPAIGN_EVENTS, ORDER_TABLES, SEGMENTS
from manifold.lake.catalog import open_catalog
from manifold.lake.commits import append_rows
from pipelines.erasure.campaigns import rows_of
from pipelines.ingest.publish import main_snapshots
from pipelines.maintenance.garbage_campaigns import campaigns_by_data_id, open_campaigns
from pipelines.maintenance.garbage_history import KEPT
from pipelines.maintenance.garbage_old_campaigns import drop_campaigns
from tests.manifold.campaigns.plans import NOW, document
from tests.pipelines.lakes import Lake

NAME, DAY = "maps-47", timedelta(days=1)
PROPOSED = r.Propose(NAME, "author", plan=document())
STARTED = (PROPOSED, r.Approve(NAME, "approver"), r.Start(NAME, f"{r.CAMPAIGNER}a"))


def is_held(lake: Lake, orders: Sequence[r.Command], *, days_after_its_end: int = 0) -> bool:
    """Whether the campaign's data is needed, with these orders on record."""
    lake.renew()
    catalog = open_catalog(lake.settings)
    rows = rows_of({seq_of(NOW + place, 0, 0): r.encode(order) for place, order in enumerate(orders)})
    for table in ORDER_TABLES:
        append_rows(catalog, table, rows[table.name], {})
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    campaigns = campaigns_by_data_id(catalog, base)
    assert campaigns == {"map_47": {NAME}}
    end = datetime_of(seq_of(instant_ms(document()["ends"]), 0, 0))
    return open_campaigns(catalog, base, {NAME}, since=end + DAY * days_after_its_end) == {NAME}


@pytest.mark.parametrize(
    ("orders", "held"),
    [
        pytest.param((PROPOSED,), True, id="proposed"),
        pytest.param((PROPOSED, r.Refuse(NAME, "approver")), False, id="refused"),
        pytest.param(STARTED, True, id="running"),
        pytest.param((*STARTED, r.Pause(NAME, "ann")), True, id="paused"),
        pytest.param((*STARTED, r.Pause(NAME, "ann"), r.Cancel(NAME, "ann")), False, id="cancelled"),
        pytest.param((*STARTED, r.Cancel(NAME, "ann", if_version=1)), True, id="a cancel without effect"),
        pytest.param((*STARTED, r.Complete(NAME, f"{r.CAMPAIGNER}a")), False, id="completed"),
    ],
)
def test_data_is_held_until_its_campaign_is_over(lake: Lake, orders: tuple[r.Command, ...], held: bool) -> None:
    assert is_held(lake, orders) is held


def test_a_campaign_whose_end_is_past_the_retention_holds_nothing(lake: Lake) -> None:
    assert is_held(lake, STARTED, days_after_its_end=0)
    assert not is_held(lake, STARTED, days_after_its_end=1)
    longer = r.Amend(NAME, "author", plan=document(ends="2026-12-22T00:00:00Z"))
    assert is_held(lake, (*STARTED, longer), days_after_its_end=1)


def test_rows_of_orders_have_the_types_of_their_tables() -> None:
    rows = rows_of({seq_of(NOW, 0, 0): r.encode(PROPOSED)})

    assert {name: rows[name].schema for name in rows} == {table.name: table.arrow_schema for table in ORDER_TABLES}
    assert {name: rows[name].num_rows for name in rows} == dict(zip(rows, (1, 1, 10), strict=True))


@pytest.mark.parametrize(
    ("last", "days_later", "left"),
    [
        pytest.param(r.Cancel(NAME, "ann"), 20, 3, id="within the retention"),
        pytest.param(r.Cancel(NAME, "ann"), 40, 0, id="over and old"),
        pytest.param(r.Pause(NAME, "ann"), 40, 3, id="not over"),
    ],
)
def test_the_record_of_a_campaign_goes_as_a_whole(lake: Lake, last: r.Command, days_later: int, left: int) -> None:
    lake.renew()
    settings = lake.settings.model_copy(update={"history_retention_days": 30, "retention_days": 30})
    catalog = open_catalog(settings)
    day_ms = round(DAY.total_seconds() * 1000)
    late = r.Propose(NAME, "author", plan=document(ends="2027-12-20T00:00:00Z"))
    given = {
        seq_of(NOW + place * day_ms, 0, 0): r.encode(order)
        for place, order in enumerate((late, r.Approve(NAME, "approver"), last))
    }
    rows = rows_of(given)
    for table in ORDER_TABLES:
        append_rows(catalog, table, rows[table.name], {})
    now = datetime_of(max(given)) + DAY * days_later

    would = drop_campaigns(catalog, settings, now=now, dry_run=True)
    done = drop_campaigns(catalog, settings, now=now, dry_run=False)

    assert would == done
    assert catalog.load_table(CAMPAIGN_EVENTS.identifier).scan().to_arrow().num_rows == left
    assert drop_campaigns(catalog, lake.settings, now=now, dry_run=False).kept_because == KEPT
