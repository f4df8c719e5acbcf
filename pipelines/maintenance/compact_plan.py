"""Decides from the numbers of a table's files which days to compact. Pure: no lake, no Spark.

A day that still grows is packed: its small files become few, with rows in the order in which they came.
A settled day is clustered: its rows are sorted by vehicle, so that a vehicle's history is in few files. So is a small table
that is looked up by its key. Sorted files carry the number of the table's sort order, so a day is clustered once, and again only
when enough rows have come late.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

SMALL = 0.75  # of the target: what Iceberg's own rewriting calls too small
UNSORTED_SHARE = 0.1  # of a settled day's bytes: from here on it is worth sorting the day again


@dataclass(frozen=True, slots=True)
class Group:
    """Data files of one table that are alike: of one day (None: the table has none), sorted or not, small or not."""

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
        """Below this, a file is small."""
        return int(self.target_bytes * SMALL)


@dataclass(frozen=True, slots=True)
class Work:
    """Which days of a table to rewrite; a table without days has the one day None."""

    pack: list[date | None] = field(default_factory=list)
    cluster: list[date | None] = field(default_factory=list)


def work_of(groups: Iterable[Group], policy: CompactionPolicy, *, today: date, can_sort: bool) -> Work:
    """The days of one table that are worth rewriting. `can_sort`: its rows are looked up by a key."""
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
    """Whether little will come to these rows soon. A table without days always grows, and is sorted after enough has come."""
    if day is None:
        return sum(group.files for group in groups if not group.is_sorted) >= policy.min_files
    return day <= settled


def _wants_sorting(groups: Sequence[Group], policy: CompactionPolicy) -> bool:
    """Much of the day is unsorted; or little, but in many files, of a day so small that sorting it costs as little as packing."""
    unsorted = [group for group in groups if not group.is_sorted]
    all_bytes = sum(group.bytes for group in groups)
    if sum(group.bytes for group in unsorted) > UNSORTED_SHARE * all_bytes:
        return True
    return sum(group.files for group in unsorted) >= policy.min_files and all_bytes <= policy.target_bytes
