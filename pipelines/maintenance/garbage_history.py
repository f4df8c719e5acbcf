"""Removes history past its retention: whole days of ended entries, with their outcomes. By default, history is kept.

One run removes the days from both tables at once, by removing whole files; no row is rewritten. A day on which any entry has no
outcome stays, because that entry is pending and its data is needed.
"""

from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan

from manifold.contracts.tables import IDS, OUTCOMES, Table
from manifold.lake.catalog import where
from manifold.settings import Settings
from pipelines.maintenance.expire_partitions import OldDays, midnight_before
from pipelines.maintenance.garbage_run import Removal

ROW_BATCH_SIZE = 5_000_000
ONE_DAY = timedelta(days=1)
KEYS = ("vin", "seq")


def history_cutoff(settings: Settings, now: datetime) -> datetime | None:
    """The midnight before which history may be removed, or None if history is kept.

    At least the last `retention_days` are kept, because entries of these days may be pending.
    """
    days = settings.history_retention_days
    return midnight_before(now, max(days, settings.retention_days)) if days else None


def drop_history(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove the days past the retention; return the number of removed entries, and the days. `dry_run` only counts.

    Raises:
        Overtaken: other runs kept being published first; the tables are unchanged, run it again.
    """
    return OLD_HISTORY.drop(catalog, history_cutoff(settings, now), now=now, dry_run=dry_run)


def _all_ended(catalog: Catalog, base: dict[str, int], day: date, rows: int) -> bool:
    """Whether every entry of this day, which has this number of `rows`, has an outcome.

    To bound the memory, a day with many rows is compared in parts of equal duration.
    `accepted_at` of an outcome is `ts` of its entry, so both are in the same part.
    """
    parts = 1 + rows // ROW_BATCH_SIZE
    midnight_of_day = datetime.combine(day, time(), UTC)
    for part in range(parts):
        since = midnight_of_day + ONE_DAY * part / parts
        until = midnight_of_day + ONE_DAY * (part + 1) / parts
        entries = _entry_keys(catalog, IDS, base[IDS.name], since, until)
        ended = _entry_keys(catalog, OUTCOMES, base[OUTCOMES.name], since, until)
        open_entries = entries.join(ended.cast(entries.schema), keys=list(KEYS), join_type="left anti")
        if open_entries.num_rows:
            return False
    return True


def _entry_keys(catalog: Catalog, table: Table, snapshot_id: int, since: datetime, until: datetime) -> pa.Table:
    """(vin, seq) of the table's rows from `since` on and before `until`."""
    assert table.day_of is not None  # true of both tables
    within: BooleanExpression = And(where(GreaterThanOrEqual, table.day_of, since), where(LessThan, table.day_of, until))
    scan = catalog.load_table(table.identifier).scan(within, KEYS, snapshot_id=snapshot_id)
    return scan.to_arrow().select(list(KEYS))


KEPT = "MANIFOLD_HISTORY_RETENTION_DAYS is 0: history is kept"
OLD_HISTORY = OldDays("history", (IDS, OUTCOMES), counted=(IDS,), kept_because=KEPT, may_remove=_all_ended)
