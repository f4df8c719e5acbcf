"""Removes the record of campaigns past the retention of history, day by day. By default, the record is kept.

A day is removed once every campaign that has rows of the day has ended, and has no event within the retention. So the record of
a campaign is removed as a whole.
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
from pipelines.maintenance.garbage_history import KEPT, history_cutoff
from pipelines.maintenance.garbage_run import Removal

ONE_DAY = timedelta(days=1)


def drop_campaigns(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove the days past the retention; return the number of rows removed from all campaign tables. `dry_run` only counts.

    Raises:
        Overtaken: other runs kept being published first; the tables are unchanged, run it again.
    """
    cutoff = history_cutoff(settings, now)  # the record of campaigns is kept as long as history
    if cutoff is None:
        return Removal(kept_because=KEPT)
    may_remove = partial(_all_campaigns_ended, cutoff)
    old_days = OldDays("campaigns", CAMPAIGN_TABLES, counted=CAMPAIGN_TABLES, kept_because=KEPT, may_remove=may_remove)
    return old_days.drop(catalog, cutoff, now=now, dry_run=dry_run)


def _all_campaigns_ended(cutoff: datetime, catalog: Catalog, base: dict[str, int], day: date, _rows: int) -> bool:
    """Whether every campaign that has rows of the day has ended, and has no event at or after `cutoff`."""
    midnight = datetime.combine(day, time(), UTC)
    campaigns: set[str] = set()
    for table in CAMPAIGN_TABLES:
        campaigns |= _campaigns_between(catalog, table, base, midnight, midnight + ONE_DAY)
    if not campaigns:
        return True
    end_of_time = datetime.max.replace(tzinfo=UTC)
    with_recent_events = _campaigns_between(catalog, CAMPAIGN_EVENTS, base, cutoff, end_of_time)
    if campaigns & with_recent_events:
        return False
    return not open_campaigns(catalog, base, campaigns, since=cutoff)


def _campaigns_between(catalog: Catalog, table: Table, base: dict[str, int], since: datetime, until: datetime) -> set[str]:
    """The campaigns that have rows in the table from `since` on and before `until`."""
    assert table.day_of is not None  # true of every table of campaigns
    within: BooleanExpression = And(where(GreaterThanOrEqual, table.day_of, since), where(LessThan, table.day_of, until))
    scan = catalog.load_table(table.identifier).scan(within, ("campaign",), snapshot_id=base[table.name])
    return set(scan.to_arrow()["campaign"].unique().to_pylist())
