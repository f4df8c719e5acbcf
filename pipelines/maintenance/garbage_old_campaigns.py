"""Removes the record of campaigns past the retention of history, day by day. By default, the record is kept.

A day is removed once each campaign with rows on it is over and has no row younger than the retention. So the record of a campaign
is removed as a whole.
"""

from datetime import UTC, date, datetime, time, timedelta
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan

from manifold.contracts.tables import CAMPAIGN_EVENTS, CAMPAIGN_TABLES, Table
from manifold.lake.catalog import where
from manifold.settings import Settings
from pipelines.maintenance.expire_partitions import OldDays
from pipelines.maintenance.garbage_campaigns import open_campaigns
from pipelines.maintenance.garbage_history import KEPT, history_cut
from pipelines.maintenance.garbage_run import Removal

ONE_DAY = timedelta(days=1)


def drop_campaigns(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove the days past the retention; return what was removed, counted over all tables of campaigns. `dry_run` only counts.

    Raises:
        ConcurrentPublish: other runs kept being published first; nothing happened, run it again.
    """
    cut = history_cut(settings, now)
    may_go = partial(_all_are_over, cut or now)
    old = OldDays("campaigns", CAMPAIGN_TABLES, counted=CAMPAIGN_TABLES, kept_because=KEPT, may_go=may_go)
    return old.drop(catalog, cut, now=now, dry_run=dry_run)


def _all_are_over(cut: datetime, catalog: Catalog, base: dict[str, int], day: date, _rows: int) -> bool:
    start = datetime.combine(day, time(), UTC)
    campaigns: set[str] = set()
    for table in CAMPAIGN_TABLES:
        campaigns |= _campaigns(catalog, table, base, start, start + ONE_DAY)
    if not campaigns:
        return True
    younger = _campaigns(catalog, CAMPAIGN_EVENTS, base, cut, datetime.max.replace(tzinfo=UTC))
    return not campaigns & younger and not open_campaigns(catalog, base, campaigns, since=cut)


def _campaigns(catalog: Catalog, table: Table, base: dict[str, int], since: datetime, until: datetime) -> set[str]:
    assert table.day_of is not None  # true of every table of campaigns
    within: BooleanExpression = And(where(GreaterThanOrEqual, table.day_of, since), where(LessThan, table.day_of, until))
    found = catalog.load_table(table.identifier).scan(within, ("campaign",), snapshot_id=base[table.name]).to_arrow()
    return set(found["campaign"].unique().to_pylist())
