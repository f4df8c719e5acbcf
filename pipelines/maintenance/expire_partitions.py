"""Removes whole days past their retention from several tables at once, in a run of its own. No row is rewritten."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import chain

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import LessThan

from manifold.contracts.tables import SEGMENTS, Table
from manifold.lake.catalog import where
from manifold.lake.commits import append_nothing
from pipelines.ingest.delete_rows import days_of, remove_days
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import main_snapshots
from pipelines.maintenance.garbage_run import SAMPLE_SIZE, Removal

log = structlog.get_logger(__name__)
MayGo = Callable[[Catalog, dict[str, int], date, int], bool]  # of catalog, snapshot ids by table, day, counted rows of the day


def midnight(now: datetime, days: float) -> datetime:
    """The UTC midnight at or before the instant that many days ago."""
    return (now - timedelta(days=days)).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class OldDays:
    """Tables whose days are removed together, and those among them whose rows are counted."""

    name: str
    tables: Sequence[Table]
    counted: Sequence[Table]
    kept_because: str  # reported if there is no retention
    may_go: MayGo = lambda *_: True

    def drop(self, catalog: Catalog, cut: datetime | None, *, now: datetime, dry_run: bool) -> Removal:
        """Remove the days before `cut` (None: keep all) from the tables; return what was removed. `dry_run` only counts.

        Raises:
            ConcurrentPublish: other runs kept being published first; nothing happened, run it again.
        """
        if cut is None:
            return Removal(kept_because=self.kept_because)
        return until_not_overtaken()(lambda: self._drop(catalog, cut, now, dry_run=dry_run))

    def _drop(self, catalog: Catalog, cut: datetime, now: datetime, *, dry_run: bool) -> Removal:
        base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
        old = {table.name: _rows_by_day(catalog, table, base[table.name], cut) for table in self.tables}
        rows = {day: sum(old[table.name].get(day, 0) for table in self.counted) for day in sorted({*chain(*old.values())})}
        days = [day for day, count in rows.items() if self.may_go(catalog, base, day, count)]
        removed = Removal(sum(rows[day] for day in days), [day.isoformat() for day in days[:SAMPLE_SIZE]])
        if dry_run or not days:
            return removed
        run = MaintenanceRun(catalog, self.name, base, now)
        for table in self.tables:
            if not old[table.name].keys().isdisjoint(days):
                run.change(table, partial(remove_days, catalog, table, days))
        run.publish(partial(append_nothing, catalog, SEGMENTS))
        log.info("old days removed", of=self.name, run_id=run.run_id, days=len(days), rows=removed.count)
        return removed


def _rows_by_day(catalog: Catalog, table: Table, at: int, cut: datetime) -> dict[date, int]:
    """The number of rows on each day before the cut."""
    assert table.day_of is not None  # true of every table passed in
    loaded = catalog.load_table(table.identifier)
    rows: dict[date, int] = {}
    for task in loaded.scan(where(LessThan, table.day_of, cut), snapshot_id=at).plan_files():
        for day in days_of(loaded, task.file):
            if day < cut.date():
                rows[day] = rows.get(day, 0) + task.file.record_count
    return rows
