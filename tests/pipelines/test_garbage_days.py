"""Closed days stay cached while a table only grows, and are forgotten when rows are removed."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog

from manifold.contracts.tables import IDS, OUTCOMES, SEGMENTS, Table
from manifold.lake.catalog import open_catalog
from pipelines.ingest.delete_rows import remove_days, remove_rows
from pipelines.ingest.erasing import erase_rows
from pipelines.ingest.publish import current_snapshots
from pipelines.ingest.restore_snapshot import replace_content
from pipelines.maintenance.garbage_days import (
    CLOSED_DAYS,
    MAX_REMEMBERED,
    ClosedDays,
    carry_over_closed_days,
    remember_closed_days,
    remembered_closed_days,
)
from pipelines.maintenance.snapshots import READ_GRACE, expire_by_count
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import NOON, at, seq_at
from tests.pipelines.plain import rows_of

DAY_MS = 86_400_000
FIRST, SECOND = NOON.date(), NOON.date() + timedelta(days=1)
OVER = {FIRST: 1, SECOND: 1}


def put(catalog: Catalog, table: Table, vin: str, ms: int) -> None:
    """Append an entry, or the outcome of one."""
    instants = {"ts": at(ms), "accepted_at": at(ms), "ended_at": at(ms)}
    row = {"vin": vin, "seq": seq_at(ms), "request_id": "r", "data_id": "d", "applied": True, "outcome": "delivered"}
    catalog.load_table(table.identifier).append(rows_of(table, [row | instants]))


def base_of(catalog: Catalog) -> dict[str, int]:
    return current_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    """One entry on each of two days, both ended and cached as closed."""
    lake.renew()
    catalog = open_catalog(lake.settings)
    for ms in (0, DAY_MS):
        put(catalog, IDS, "V1", ms)
        put(catalog, OUTCOMES, "V1", ms)
    remember_closed_days(catalog, base_of(catalog), OVER)
    return catalog


def test_closed_days_stay_cached_while_rows_are_only_added(catalog: Catalog) -> None:
    put(catalog, IDS, "V2", 2 * DAY_MS)
    put(catalog, OUTCOMES, "V9", 1)
    assert remembered_closed_days(catalog, base_of(catalog)) == OVER


def named(*columns: str) -> pa.Table:
    return pa.table({"vin": ["V1"], "seq": [seq_at(0)]}).select(list(columns))


LOSSES: dict[str, Callable[[Catalog, Table], object]] = {
    "a repair": lambda catalog, table: remove_rows(catalog, table, named("vin", "seq"), "main", {}),
    "an erasure": lambda catalog, table: erase_rows(catalog, table, named("vin"), "main", {}),
    "a restore": lambda catalog, table: replace_content(catalog, table, None, "main", {}),
    "somebody's DELETE": lambda catalog, table: catalog.load_table(table.identifier).delete("vin == 'V1'"),
}


@pytest.mark.parametrize("table", [IDS, OUTCOMES], ids=lambda table: table.name)
@pytest.mark.parametrize("loss", LOSSES)
def test_removed_rows_invalidate_the_cache_even_if_others_replace_them(catalog: Catalog, loss: str, table: Table) -> None:
    LOSSES[loss](catalog, table)
    put(catalog, table, "V2", 0)
    assert remembered_closed_days(catalog, base_of(catalog)) == {}


def test_a_rollback_invalidates_the_cache(catalog: Catalog) -> None:
    before = catalog.load_table(OUTCOMES.identifier).current_snapshot()
    put(catalog, OUTCOMES, "V2", 5)
    replace_content(catalog, OUTCOMES, before, "main", {})
    assert remembered_closed_days(catalog, base_of(catalog)) == {}


def test_findings_of_newer_snapshots_do_not_apply_to_older_ones(catalog: Catalog) -> None:
    older = base_of(catalog)
    put(catalog, OUTCOMES, "V1", 7)
    remember_closed_days(catalog, base_of(catalog), OVER)
    assert remembered_closed_days(catalog, older) == {}


def test_only_removed_days_are_forgotten(catalog: Catalog) -> None:
    for table in (IDS, OUTCOMES):
        remove_days(catalog, table, [FIRST], "main", {})
    put(catalog, IDS, "V2", 0)  # as many as before, with one open
    assert remembered_closed_days(catalog, base_of(catalog)) == {SECOND: 1}


def test_the_cache_is_carried_over_expired_snapshots(catalog: Catalog, lake: Lake) -> None:
    for n in range(4):
        put(catalog, IDS, "V2", 2 * DAY_MS + n)
        put(catalog, OUTCOMES, "V2", 2 * DAY_MS + n)
    few = lake.settings.model_copy(update={"snapshot_max": 2})
    gone = expire_by_count(catalog, few, now=datetime.now(UTC) + 2 * READ_GRACE)
    assert gone[IDS.name]
    assert gone[OUTCOMES.name]
    assert remembered_closed_days(catalog, base_of(catalog)) == OVER


def test_an_invalid_cache_is_not_carried_over(catalog: Catalog) -> None:
    LOSSES["a repair"](catalog, OUTCOMES)
    carry_over_closed_days(catalog)
    assert remembered_closed_days(catalog, base_of(catalog)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"at":[1],"days":[]}',
        '{"at":[1,2],"days":5}',
        '{"at":[1,2],"days":[["2026-01-01",5]]}',
        '{"at":[1,2],"days":[["9999-12-31",[1,2]]]}',
        '{"at":[1e999,2],"days":[]}',
        "[" * 100_000,
    ],
)
def test_an_unreadable_cache_is_discarded(catalog: Catalog, text: str) -> None:
    with catalog.load_table(IDS.identifier).transaction() as change:
        change.set_properties({CLOSED_DAYS: text})
    assert remembered_closed_days(catalog, base_of(catalog)) == {}
    carry_over_closed_days(catalog)


@given(st.dictionaries(st.dates(date(1970, 1, 1), date(2100, 1, 1)), st.integers(1, 10**9)))
def test_the_cache_is_read_back_as_written(entries: dict[date, int]) -> None:
    over = ClosedDays(1, 2**62, entries)
    assert ClosedDays.from_text(over.to_text()) == over


def test_ten_years_of_days_take_a_few_kilobytes_and_more_are_truncated() -> None:
    decade = {FIRST - timedelta(days=n): 1_000_000 + n for n in range(3650)}
    assert len(ClosedDays(1, 2, decade).to_text()) < 30_000
    ages = {date(1970, 1, 1) + timedelta(days=n): 1 for n in range(MAX_REMEMBERED + 5)}
    kept = ClosedDays.from_text(ClosedDays(1, 2, ages).to_text())
    assert kept is not None
    assert sorted(kept.entries) == sorted(ages)[5:]
