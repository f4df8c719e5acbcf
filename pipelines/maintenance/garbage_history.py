"""Removes history past its retention: whole days of ended entries, with their outcomes. By default it is kept.

A run of its own removes the days from both tables at once, file by file: no row is rewritten. A day with a single entry that
has no outcome stays as it is, because the entry is pending and its data is needed.
"""

from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta
from functools import partial

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable

from adapters.commits import append_nothing
from adapters.lake import where
from contracts.settings import Settings
from contracts.tables import IDS, OUTCOMES, SEGMENTS, Table
from pipelines.ingest.amending import Amendment, until_not_overtaken
from pipelines.ingest.publish import main_snapshots
from pipelines.ingest.removal import days_of, remove_days
from pipelines.maintenance.garbage_run import SAMPLE, Removal

ROWS_AT_ONCE = 5_000_000
A_DAY = timedelta(days=1)
KEYS = ("vin", "seq")

log = structlog.get_logger(__name__)


def history_cut(settings: Settings, now: datetime) -> datetime | None:
    """The midnight before which history may go; None: it is kept. Never what may still be pending by its retention."""
    if not settings.history_retention_days:
        return None
    cut = now - timedelta(days=max(settings.history_retention_days, settings.retention_days))
    return cut.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def drop_history(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Take the days out that have passed; how many entries. `dry_run`: only say it.

    Raises:
        ConcurrentPublish: other runs were published all the time; nothing has happened, do it again.
    """
    cut = history_cut(settings, now)
    if cut is None:
        return Removal(kept_because="MANIFOLD_HISTORY_RETENTION_DAYS is 0: history is kept")
    return until_not_overtaken()(lambda: _drop(catalog, cut, now, dry_run=dry_run))


def _drop(catalog: Catalog, cut: datetime, now: datetime, *, dry_run: bool) -> Removal:
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    ids, outcomes = (_by_day(catalog.load_table(t.identifier), t, base[t.name], cut) for t in (IDS, OUTCOMES))
    days = [day for day in sorted({*ids, *outcomes}) if _all_ended(catalog, base, day, _rows(ids.get(day, ())))]
    removed = Removal(sum(_rows(ids.get(day, ())) for day in days), [day.isoformat() for day in days[:SAMPLE]])
    if dry_run or not days:
        return removed
    run = Amendment(catalog, "history", base, now)
    for table, files in ((IDS, ids), (OUTCOMES, outcomes)):
        if any(day in files for day in days):
            run.change(table, partial(remove_days, catalog, table, days))
    run.publish(partial(append_nothing, catalog, SEGMENTS))
    log.info("history is removed", run_id=run.run_id, days=len(days), entries=removed.count)
    return removed


def _by_day(table: IcebergTable, of: Table, at: int, cut: datetime) -> dict[date, list[FileScanTask]]:
    assert of.day_of is not None  # both tables asked here have days
    found: dict[date, list[FileScanTask]] = {}
    for task in table.scan(where(LessThan, of.day_of, cut), snapshot_id=at).plan_files():
        for day in days_of(table, task.file):
            if day < cut.date():
                found.setdefault(day, []).append(task)
    return found


def _rows(tasks: Collection[FileScanTask]) -> int:
    return sum(task.file.record_count for task in tasks)


def _all_ended(catalog: Catalog, base: dict[str, int], day: date, rows: int) -> bool:
    """Whether every entry of this day has an outcome; looked at in parts of the day, where it has very many."""
    parts = 1 + rows // ROWS_AT_ONCE
    start = datetime.combine(day, time(), UTC)
    for part in range(parts):
        since, until = start + A_DAY * part / parts, start + A_DAY * (part + 1) / parts
        entries, ended = (_keys(catalog, table, base[table.name], since, until) for table in (IDS, OUTCOMES))
        if entries.join(ended.cast(entries.schema), keys=list(KEYS), join_type="left anti").num_rows:
            return False
    return True


def _keys(catalog: Catalog, table: Table, at: int, since: datetime, until: datetime) -> pa.Table:
    assert table.day_of is not None
    within: BooleanExpression = And(where(GreaterThanOrEqual, table.day_of, since), where(LessThan, table.day_of, until))
    return catalog.load_table(table.identifier).scan(within, KEYS, snapshot_id=at).to_arrow().select(list(KEYS))
