"""Decides from a table's file counts which days to compact. Pure: no lake, no Spark.

A day that still grows is packed: its small files become few, with rows in arrival order.
A settled day is clustered: its rows are sorted by vehicle, so that a vehicle's history is in few files. So is a small table
that is looked up by its key. Sorted files carry the id of the table's sort order, so a day is clustered once, and again only
after enough rows have arrived late.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

SMALL = 0.75  # of the target size; Iceberg's own rewrite calls smaller files too small
UNSORTED_SHARE = 0.1  # of a settled day's bytes; above this, the day is sorted again


@dataclass(frozen=True, slots=True)
class Group:
    """Data files of one table that are alike: of one day (None: the table has no days), sorted or not, small or not."""

    day: date | None
    is_sorted: bool
    is_small: bool
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When a rewrite pays; see the settings `compact_…`."""

    target_bytes: int
    min_files: int
    max_manifests: int
    settled_days: int

    @property
    def small_bytes(self) -> int:
        """The size below which a file is small."""
        return int(self.target_bytes * SMALL)


@dataclass(frozen=True, slots=True)
class Work:
    """Days of a table to rewrite; a table without days has the single day None."""

    pack: list[date | None] = field(default_factory=list)
    cluster: list[date | None] = field(default_factory=list)


def work_of(groups: Iterable[Group], policy: CompactionPolicy, *, today: date, can_sort: bool) -> Work:
    """The days of a table that are worth rewriting. `can_sort`: its rows are looked up by a key."""
    by_day: dict[date | None, list[Group]] = {}
    for group in groups:
        by_day.setdefault(group.day, []).append(group)
    pack: list[date | None] = []
    cluster: list[date | None] = []
    settled = today - timedelta(days=policy.settled_days)
    for day in sorted(by_day, key=lambda d: d or date.min):
        if can_sort and _is_settled(by_day[day], day, settled, policy) and _wants_sorting(by_day[day], policy):
            cluster.append(day)
        elif sum(g.files for g in by_day[day] if g.is_small) >= policy.min_files:
            pack.append(day)
    return Work(pack, cluster)


def _is_settled(groups: Sequence[Group], day: date | None, settled: date, policy: CompactionPolicy) -> bool:
    """Whether few rows will be added soon. A table without days always grows; it is sorted once enough files are unsorted."""
    if day is None:
        return sum(group.files for group in groups if not group.is_sorted) >= policy.min_files
    return day <= settled


def _wants_sorting(groups: Sequence[Group], policy: CompactionPolicy) -> bool:
    """Whether much of the day is unsorted, or little in many files of a day so small that sorting costs no more than packing."""
    unsorted = [group for group in groups if not group.is_sorted]
    all_bytes = sum(group.bytes for group in groups)
    if sum(group.bytes for group in unsorted) > UNSORTED_SHARE * all_bytes:
        return True
    return sum(group.files for group in unsorted) >= policy.min_files and all_bytes <= policy.target_bytes
