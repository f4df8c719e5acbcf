"""Remembers closed days: past days on which every entry has an outcome, as a comparison of all their rows has found. No Spark.

Row counts alone cannot tell whether a day is closed: an outcome whose entry is missing (its trigger was quarantined, or erased)
would make up for an open entry. So each collection reads the rows of a day until no entry is open. Then the day is remembered in
a property of `sdv_fanout_ids`, with its number of entries, and the ids of the snapshots of both tables that were compared.

A remembered day stays closed in later snapshots as long as only appends and rewrites follow: no outcome disappears, and a day
with the same number of entries has no new entry. After any other change (rollback, restore, erasure, repair, a manual DELETE),
all days are forgotten, so code that removes rows need not know of this module. A snapshot that removes whole days names them, and
only these days are forgotten.
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

CLOSED_DAYS = "manifold.days-over"  # property of `sdv_fanout_ids`
MAX_REMEMBERED = 10_000  # newest days; each adds about eight characters to metadata that every commit rewrites
OPERATIONS_KEEPING_ROWS = (Operation.APPEND, Operation.REPLACE)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClosedDays:
    """The closed days, with their numbers of entries, in two snapshots."""

    ids_snapshot: int  # snapshot id of `sdv_fanout_ids`
    outcomes_snapshot: int  # snapshot id of `sdv_fanout_outcomes`
    entries: Mapping[date, int]  # day → number of entries

    def to_text(self) -> str:
        """JSON: the two snapshot ids, and spans of consecutive days, each with its first day and the numbers of entries."""
        spans: list[tuple[date, list[int]]] = []
        next_day = None
        for day, count in sorted(self.entries.items())[-MAX_REMEMBERED:]:
            if day != next_day:
                spans.append((day, []))
            counts = spans[-1][1]
            counts.append(count)
            next_day = day + timedelta(days=1)
        days = [[first_day.isoformat(), counts] for first_day, counts in spans]
        content = {"at": [self.ids_snapshot, self.outcomes_snapshot], "days": days}
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "ClosedDays | None":
        """Parse the output of `to_text`; None if `text` is anything else."""
        try:
            content = json.loads(text)
            ids_snapshot, outcomes_snapshot = map(int, content["at"])
            entries: dict[date, int] = {}
            for first, counts in content["days"]:
                first_day = date.fromisoformat(first)
                for offset, count in enumerate(counts[:MAX_REMEMBERED]):
                    entries[first_day + timedelta(days=offset)] = int(count)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
            return None
        return cls(ids_snapshot, outcomes_snapshot, entries)


def remembered_closed_days(catalog: Catalog, base: Mapping[str, int]) -> dict[date, int]:
    """Return the remembered days, with their numbers of entries, that may still be closed in the snapshots `base`.

    Such a day is closed if it has the same number of entries in `base`.
    """
    ids = catalog.load_table(IDS.identifier)
    outcomes = catalog.load_table(OUTCOMES.identifier)
    text = ids.properties.get(CLOSED_DAYS)
    if text is None:
        return {}
    remembered = ClosedDays.from_text(text)
    if remembered is None:
        log.warning("remembered days unreadable; checking every day for open entries", table=IDS.name, property=CLOSED_DAYS)
        return {}
    entries = dict(remembered.entries)
    for table, old_snapshot_id, new_snapshot_id in (
        (ids, remembered.ids_snapshot, base[IDS.name]),
        (outcomes, remembered.outcomes_snapshot, base[OUTCOMES.name]),
    ):
        try:
            for removed_day in _days_removed_between(table, old_snapshot_id, new_snapshot_id):
                entries.pop(removed_day, None)
        except _MayHaveLostRows as exc:
            log.info("remembered days invalid; checking every day for open entries", table=table.name()[-1], reason=str(exc))
            return {}
    return entries


def remember_closed_days(catalog: Catalog, base: Mapping[str, int], entries: Mapping[date, int]) -> None:
    """Remember that these days, which have these numbers of entries, are closed in the snapshots `base`."""
    _write_property(catalog, ClosedDays(base[IDS.name], base[OUTCOMES.name], entries).to_text())


def carry_over_closed_days(catalog: Catalog) -> None:
    """Remember for main's current snapshots the days that were remembered for earlier snapshots, and are still closed.

    Call this before snapshots are expired: the snapshots since the remembered ones prove that the days are still closed.
    """
    base: dict[str, int] = {}
    for table in (IDS, OUTCOMES):
        head = catalog.load_table(table.identifier).current_snapshot()
        if head is None:  # the table has no snapshot yet, so no day is remembered
            return
        base[table.name] = head.snapshot_id
    entries = remembered_closed_days(catalog, base)
    if entries:
        remember_closed_days(catalog, base, entries)


class _MayHaveLostRows(Exception):
    """Since the remembered snapshot, the table may have lost rows other than those of whole days."""


def _days_removed_between(table: IcebergTable, old_snapshot_id: int, new_snapshot_id: int) -> Iterator[date]:
    """Yield the days that were removed as a whole after the old snapshot, up to the new snapshot.

    Raises:
        _MayHaveLostRows: other rows may have been removed, too.
    """
    for snapshot in ancestors_of(table.snapshot_by_id(new_snapshot_id), table.metadata):
        if snapshot.snapshot_id == old_snapshot_id:
            return
        if REMOVES_DAYS in properties_of(snapshot):
            yield from _days_removed_by(snapshot)
        elif snapshot.summary is None or snapshot.summary.operation not in OPERATIONS_KEEPING_ROWS:
            raise _MayHaveLostRows(f"snapshot {snapshot.snapshot_id} has removed rows")
    raise _MayHaveLostRows(f"its history does not reach back to snapshot {old_snapshot_id}")


def _days_removed_by(snapshot: Snapshot) -> list[date]:
    """The days that the snapshot removed as a whole, from its property `REMOVES_DAYS`."""
    try:
        return [date.fromisoformat(day) for day in json.loads(properties_of(snapshot)[REMOVES_DAYS])]
    except (ValueError, TypeError) as exc:
        raise _MayHaveLostRows(f"snapshot {snapshot.snapshot_id} does not say which days it has removed") from exc


@retry_conflicts
def _write_property(catalog: Catalog, text: str) -> None:
    """Set the property `CLOSED_DAYS` of `sdv_fanout_ids`, unless it already has this text."""
    loaded = catalog.load_table(IDS.identifier)
    if loaded.properties.get(CLOSED_DAYS) != text:
        with loaded.transaction() as change:
            change.set_properties({CLOSED_DAYS: text})
