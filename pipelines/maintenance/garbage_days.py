"""Remembers days that are over: all of their rows were compared, and every entry has an outcome. No Spark.

Row counts cannot tell this: an outcome without an entry (its trigger was set aside, or erased) would hide an open entry. So
a day is read until none of its entries is open, and then remembered in a property of `sdv_fanout_ids`, with its number of
entries and the snapshots of both tables in which that was found.

This stays valid for every snapshot that follows from these by appends and rewrites alone: outcomes stay, and a day with the
same number of entries has no new entry. After any other change (rollback, restore, erasure, repair, a manual DELETE) all days
are forgotten, so code that removes rows need not know of this. If whole days were removed, only those are forgotten.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.commits import retry_conflicts
from pipelines.ingest.branches import properties_of
from pipelines.ingest.delete_rows import REMOVES_DAYS

DAYS_OVER = "manifold.days-over"  # property of `sdv_fanout_ids`
MAX_REMEMBERED = 10_000  # the newest days; about eight characters each, in metadata that every commit rewrites
KEEPING = (Operation.APPEND, Operation.REPLACE)  # operations that remove no row

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DaysOver:
    """The number of entries on each day that was over in these snapshots of entries and outcomes."""

    ids: int
    outcomes: int
    entries: Mapping[date, int]

    def to_text(self) -> str:
        """JSON: the two snapshots, and runs of consecutive days, each as its first day and its numbers of entries."""
        runs: list[tuple[date, list[int]]] = []
        for day, count in sorted(self.entries.items())[-MAX_REMEMBERED:]:
            if not runs or runs[-1][0] + timedelta(days=len(runs[-1][1])) != day:
                runs.append((day, []))
            runs[-1][1].append(count)
        content = {"at": [self.ids, self.outcomes], "days": [[first.isoformat(), counts] for first, counts in runs]}
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "DaysOver | None":
        """Parse the output of `to_text`; None if `text` is anything else."""
        try:
            content = json.loads(text)
            ids, outcomes = map(int, content["at"])
            entries: dict[date, int] = {}
            for first, counts in content["days"]:
                start = date.fromisoformat(first)
                entries |= {start + timedelta(days=number): int(count) for number, count in enumerate(counts[:MAX_REMEMBERED])}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
            return None
        return cls(ids, outcomes, entries)


def days_over(catalog: Catalog, base: Mapping[str, int]) -> dict[date, int]:
    """The remembered days that still hold in the snapshots `base`: a day with the same number of entries is over."""
    ids, outcomes = (catalog.load_table(table.identifier) for table in (IDS, OUTCOMES))
    text = ids.properties.get(DAYS_OVER)
    remembered = DaysOver.from_text(text) if text is not None else None
    if remembered is None:
        if text is not None:
            log.warning("remembered days unreadable; checking every day for open entries", table=IDS.name, property=DAYS_OVER)
        return {}
    entries = dict(remembered.entries)
    for table, then, now in (
        (ids, remembered.ids, base[IDS.name]),
        (outcomes, remembered.outcomes, base[OUTCOMES.name]),
    ):
        try:
            for removed in _removed(table, then, now):
                entries.pop(removed, None)
        except _MayHaveLostRows as exc:
            log.info("remembered days dropped; checking every day for open entries", table=table.name()[-1], reason=str(exc))
            return {}
    return entries


def remember_days(catalog: Catalog, base: Mapping[str, int], entries: Mapping[date, int]) -> None:
    """Remember that these days, with these numbers of entries, are over in the snapshots `base`."""
    _write(catalog, DaysOver(base[IDS.name], base[OUTCOMES.name], entries).to_text())


def carry_over(catalog: Catalog) -> None:
    """Remember the days for main as it is now: the snapshots that prove that they still hold are about to be expired."""
    loaded = {table.name: catalog.load_table(table.identifier) for table in (IDS, OUTCOMES)}
    base = {name: head.snapshot_id for name, table in loaded.items() if (head := table.current_snapshot()) is not None}
    if len(base) == len(loaded) and (entries := days_over(catalog, base)):
        remember_days(catalog, base, entries)


class _MayHaveLostRows(Exception):
    """The table may have lost other rows than those of whole days in the meantime."""


def _removed(table: IcebergTable, then: int, now: int) -> Iterator[date]:
    """Yield the days removed as a whole between these two snapshots.

    Raises:
        _MayHaveLostRows: other rows may have been removed, too.
    """
    for snapshot in ancestors_of(table.snapshot_by_id(now), table.metadata):
        if snapshot.snapshot_id == then:
            return
        if REMOVES_DAYS in properties_of(snapshot):
            yield from _days_named(snapshot)
        elif snapshot.summary is None or snapshot.summary.operation not in KEEPING:
            raise _MayHaveLostRows(f"snapshot {snapshot.snapshot_id} has removed rows")
    raise _MayHaveLostRows(f"its history does not reach back to snapshot {then}")


def _days_named(snapshot: Snapshot) -> list[date]:
    try:
        return [date.fromisoformat(day) for day in json.loads(properties_of(snapshot)[REMOVES_DAYS])]
    except (ValueError, TypeError) as exc:
        raise _MayHaveLostRows(f"snapshot {snapshot.snapshot_id} does not say which days it has removed") from exc


@retry_conflicts
def _write(catalog: Catalog, text: str) -> None:
    loaded = catalog.load_table(IDS.identifier)
    if loaded.properties.get(DAYS_OVER) != text:
        with loaded.transaction() as change:
            change.set_properties({DAYS_OVER: text})
