"""Decides from a table's file counts which days to compact. Pure: no lake, no Spark.

A day that still grows is packed: its small files are merged into few, with rows in arrival order. A settled day is clustered: its
rows are sorted by vehicle, so that a vehicle's history is in few files. A table without days that is looked up by its key is
clustered, too. Sorted files carry the id of the table's sort order, so a day is clustered once, and again only after enough rows
have arrived late.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

SMALL_FILE_SHARE = 0.75  # of the target size; Iceberg's own rewrite considers smaller files too small
MAX_UNSORTED_SHARE = 0.1  # of a settled day's bytes; above this, the day is sorted again


@dataclass(frozen=True, slots=True)
class Group:
    """Data files of a table that have the same day (None: no day), are all sorted or all not, and are all small or all not."""

    day: date | None
    is_sorted: bool
    is_small: bool
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Thresholds above which a rewrite is worthwhile; see the settings `compact_…`."""

    target_bytes: int
    min_files: int
    max_manifests: int
    settled_days: int

    @property
    def small_bytes(self) -> int:
        """The size below which a file is small."""
        return int(self.target_bytes * SMALL_FILE_SHARE)


@dataclass(frozen=True, slots=True)
class Work:
    """Days of a table to rewrite; a table without days has the single day None."""

    pack: list[date | None] = field(default_factory=list)
    cluster: list[date | None] = field(default_factory=list)


def work_of(groups: Iterable[Group], policy: CompactionPolicy, *, today: date, can_sort: bool) -> Work:
    """Return the days of a table that are worth rewriting. `can_sort` tells whether the table has a sort order."""
    by_day: dict[date | None, list[Group]] = {}
    for group in groups:
        by_day.setdefault(group.day, []).append(group)
    pack: list[date | None] = []
    cluster: list[date | None] = []
    last_settled_day = today - timedelta(days=policy.settled_days)
    for day in sorted(by_day, key=lambda day: day or date.min):
        day_groups = by_day[day]
        small_files = sum(group.files for group in day_groups if group.is_small)
        if can_sort and _is_settled(day_groups, day, last_settled_day, policy) and _needs_sorting(day_groups, policy):
            cluster.append(day)
        elif small_files >= policy.min_files:
            pack.append(day)
        # Any other day has few small files, so a rewrite is not worthwhile.
    return Work(pack, cluster)


def _is_settled(groups: Sequence[Group], day: date | None, last_settled_day: date, policy: CompactionPolicy) -> bool:
    """Whether few rows are expected to be added to the day.

    A table without days (None) never stops growing; it counts as settled once enough of its files are unsorted.
    """
    if day is None:
        unsorted_files = sum(group.files for group in groups if not group.is_sorted)
        return unsorted_files >= policy.min_files
    return day <= last_settled_day


def _needs_sorting(groups: Sequence[Group], policy: CompactionPolicy) -> bool:
    """Whether a large share of the day's bytes is unsorted.

    A day that fits in one file also needs sorting if it has many unsorted files, because sorting it costs no more than packing.
    """
    unsorted = [group for group in groups if not group.is_sorted]
    all_bytes = sum(group.bytes for group in groups)
    unsorted_bytes = sum(group.bytes for group in unsorted)
    if unsorted_bytes > MAX_UNSORTED_SHARE * all_bytes:
        return True
    unsorted_files = sum(group.files for group in unsorted)
    return unsorted_files >= policy.min_files and all_bytes <= policy.target_bytes
