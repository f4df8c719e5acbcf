"""Removes history past its retention: whole days of ended entries, with their outcomes. By default it is kept.

One run removes the days from both tables at once, file by file: no row is rewritten. A day with a single entry that has no
outcome stays, because the entry is pending and its data is needed.
"""

from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan

from manifold.contracts.tables import IDS, OUTCOMES, Table
from manifold.lake.catalog import where
from manifold.settings import Settings
from pipelines.maintenance.expire_partitions import OldDays, midnight
from pipelines.maintenance.garbage_run import Removal

ROW_BATCH_SIZE = 5_000_000
ONE_DAY = timedelta(days=1)
KEYS = ("vin", "seq")


def history_cut(settings: Settings, now: datetime) -> datetime | None:
    """The midnight before which history may be removed, never within `retention_days`; None: history is kept."""
    days = settings.history_retention_days
    return midnight(now, max(days, settings.retention_days)) if days else None


def drop_history(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove the days past the retention; return what was removed, counted in entries. `dry_run` only counts.

    Raises:
        ConcurrentPublish: other runs kept being published first; nothing happened, run it again.
    """
    return OLD_HISTORY.drop(catalog, history_cut(settings, now), now=now, dry_run=dry_run)


def _all_ended(catalog: Catalog, base: dict[str, int], day: date, rows: int) -> bool:
    """Whether every entry of this day has an outcome; a large day is compared in parts."""
    parts = 1 + rows // ROW_BATCH_SIZE
    start = datetime.combine(day, time(), UTC)
    for part in range(parts):
        since, until = start + ONE_DAY * part / parts, start + ONE_DAY * (part + 1) / parts
        entries, ended = (_keys(catalog, table, base[table.name], since, until) for table in (IDS, OUTCOMES))
        if entries.join(ended.cast(entries.schema), keys=list(KEYS), join_type="left anti").num_rows:
            return False
    return True


def _keys(catalog: Catalog, table: Table, at: int, since: datetime, until: datetime) -> pa.Table:
    assert table.day_of is not None
    within: BooleanExpression = And(where(GreaterThanOrEqual, table.day_of, since), where(LessThan, table.day_of, until))
    return catalog.load_table(table.identifier).scan(within, KEYS, snapshot_id=at).to_arrow().select(list(KEYS))


KEPT = "MANIFOLD_HISTORY_RETENTION_DAYS is 0: history is kept"
OLD_HISTORY = OldDays("history", (IDS, OUTCOMES), counted=(IDS,), kept_because=KEPT, may_go=_all_ended)
