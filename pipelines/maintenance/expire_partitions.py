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
# Decides whether a day may be removed, from the catalog, the snapshot ids by table, the day, and the number of its counted rows.
MayRemove = Callable[[Catalog, dict[str, int], date, int], bool]


def midnight_before(now: datetime, days: float) -> datetime:
    """The last UTC midnight at or before the instant that is `days` before `now`."""
    return (now - timedelta(days=days)).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class OldDays:
    """Tables whose old days are removed together, in one run."""

    name: str  # of the kind of rows, for run ids and logs
    tables: Sequence[Table]
    counted: Sequence[Table]  # the tables whose rows are counted in the result
    kept_because: str  # reported if there is no retention
    may_remove: MayRemove = lambda *_: True

    def drop(self, catalog: Catalog, cutoff: datetime | None, *, now: datetime, dry_run: bool) -> Removal:
        """Remove the days before `cutoff` from the tables; return what was removed. With None, all days are kept.

        With `dry_run`, nothing is removed, and the result says what would be.

        Raises:
            Overtaken: other runs kept being published first; the tables are unchanged, run it again.
        """
        if cutoff is None:
            return Removal(kept_because=self.kept_because)
        return until_not_overtaken()(lambda: self._drop(catalog, cutoff, now, dry_run=dry_run))

    def _drop(self, catalog: Catalog, cutoff: datetime, now: datetime, *, dry_run: bool) -> Removal:
        """Make one attempt at the removal, on main as it is now."""
        base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
        rows_by_table = {table.name: _rows_by_day(catalog, table, base[table.name], cutoff) for table in self.tables}
        old_days = sorted(set(chain.from_iterable(rows_by_table.values())))
        counts = {day: sum(rows_by_table[table.name].get(day, 0) for table in self.counted) for day in old_days}
        days = [day for day in old_days if self.may_remove(catalog, base, day, counts[day])]
        removal = Removal(sum(counts[day] for day in days), [day.isoformat() for day in days[:SAMPLE_SIZE]])
        if dry_run or not days:
            return removal
        run = MaintenanceRun(catalog, self.name, base, now)
        for table in self.tables:
            has_rows = not rows_by_table[table.name].keys().isdisjoint(days)
            if has_rows:
                run.change(table, partial(remove_days, catalog, table, days))
        run.publish(partial(append_nothing, catalog, SEGMENTS))  # the ledger itself does not change
        log.info(
            "old days removed",
            kind=self.name,
            run_id=run.run_id,
            tables=[table.name for table in self.tables],
            days=len(days),
            rows=removal.count,
            rows_counted_in=[table.name for table in self.counted],
        )
        return removal


def _rows_by_day(catalog: Catalog, table: Table, snapshot_id: int, cutoff: datetime) -> dict[date, int]:
    """The number of the table's rows on each day before the day of `cutoff`."""
    assert table.day_of is not None  # true of every table passed in
    loaded = catalog.load_table(table.identifier)
    rows: dict[date, int] = {}
    for task in loaded.scan(where(LessThan, table.day_of, cutoff), snapshot_id=snapshot_id).plan_files():
        for day in days_of(loaded, task.file):
            if day < cutoff.date():
                rows[day] = rows.get(day, 0) + task.file.record_count
    return rows
