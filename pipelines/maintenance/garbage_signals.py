"""Removes signals past `signals_retention_days`: whole days of their tables, by the day on which they came. By default none."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import LessThan

from adapters.commits import append_nothing
from adapters.lake import has_signals, where
from contracts.settings import Settings
from contracts.tables import SEGMENTS, SIGNAL_TABLES, Table
from pipelines.ingest.amending import Amendment, until_not_overtaken
from pipelines.ingest.publish import main_snapshots
from pipelines.ingest.removal import days_of, remove_days
from pipelines.maintenance.garbage_run import SAMPLE, Removal

log = structlog.get_logger(__name__)


def signals_cut(settings: Settings, now: datetime) -> datetime | None:
    """The midnight before which signals may go; None: they are kept."""
    if not settings.signals_retention_days:
        return None
    cut = now - timedelta(days=settings.signals_retention_days)
    return cut.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def drop_signals(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Take the days out that have passed; how many rows of all tables of signals. `dry_run`: only say it.

    Raises:
        ConcurrentPublish: other runs were published all the time; nothing has happened, do it again.
    """
    cut = signals_cut(settings, now)
    if cut is None:
        return Removal(kept_because="MANIFOLD_SIGNALS_RETENTION_DAYS is 0: signals are kept")
    if not has_signals(catalog):
        return Removal()
    return until_not_overtaken()(lambda: _drop(catalog, cut, now, dry_run=dry_run))


def _drop(catalog: Catalog, cut: datetime, now: datetime, *, dry_run: bool) -> Removal:
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    old = {table.name: dict(_old(catalog, table, base[table.name], cut)) for table in SIGNAL_TABLES}
    days = sorted({day for of in old.values() for day in of})
    removed = Removal(sum(sum(of.values()) for of in old.values()), [day.isoformat() for day in days[:SAMPLE]])
    if dry_run or not days:
        return removed
    run = Amendment(catalog, "signals", base, now)
    for table in SIGNAL_TABLES:
        if of := old[table.name]:
            run.change(table, partial(remove_days, catalog, table, list(of)))
    run.publish(partial(append_nothing, catalog, SEGMENTS))
    log.info("signals are removed", run_id=run.run_id, days=len(days), rows=removed.count)
    return removed


def _old(catalog: Catalog, table: Table, at: int, cut: datetime) -> Iterator[tuple[date, int]]:
    """Days before the cut, and how many rows they have."""
    assert table.day_of is not None  # the tables asked here have days
    loaded = catalog.load_table(table.identifier)
    rows: dict[date, int] = {}
    for task in loaded.scan(where(LessThan, table.day_of, cut), snapshot_id=at).plan_files():
        for day in days_of(loaded, task.file):
            if day < cut.date():
                rows[day] = rows.get(day, 0) + task.file.record_count
    yield from rows.items()
