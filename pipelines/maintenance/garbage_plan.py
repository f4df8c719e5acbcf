"""Decides which days are read, and which snapshots and segments may be removed. Pure, without a clock.

The order of the steps is part of the guarantee. Nothing that an earlier step leaves behind needs what a later step removes,
even if the run dies in between:

1. everything recorded before the cut-off is ingested, so that every trigger that could refer to old data is a row;
2. entries past the retention end as `expired`: first in the queues, so that none is sent any more, then in the lake;
3. data past the retention is removed, unless an entry without an outcome refers to it;
4. only then files: snapshots that no reader can be using, files that no snapshot references, segments that are in the lake.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import date, datetime


@dataclass(frozen=True, slots=True)
class Version:
    """One snapshot of a table. `parent` is None for the first, and if the parent is gone."""

    id: int
    parent: int | None
    made_at: datetime


@dataclass(frozen=True, slots=True, order=True)
class ArchivedSegment:
    """One segment of the archive; `node` is the recorder named by the file."""

    path: str
    stream: str
    node: str
    began_at: datetime


def days_to_read(entries: Mapping[date, int], over: Mapping[date, int], *, before: date) -> list[date]:
    """Days before `before` that may have an open entry: those not known to be over with their current number of entries."""
    return sorted(day for day, count in entries.items() if day < before and over.get(day) != count)


def old_versions(
    versions: Iterable[Version], heads: Collection[int], main: int, *, keep: Collection[int], cut: datetime
) -> set[int]:
    """Snapshots that can be expired.

    Snapshots that were main's newest at some moment since `cut` stay, so that readers that began then can finish. So does main's
    history down to the oldest of `keep`, because publication looks for the newest run among main's ancestors. Of any other
    branch, the head and its parent stay: the parent is the run's base. Snapshots on no branch go by age.
    """
    known = {version.id: version for version in versions}
    staying = set(heads)
    staying |= {parent for head in heads if head != main and (parent := known[head].parent) is not None}
    line, at = [], known.get(main)
    while at is not None:
        line.append(at)
        at = known.get(at.parent) if at.parent is not None else None
    read_since = (place for place in range(1, len(line)) if line[place - 1].made_at >= cut)
    wanted = (place for place, version in enumerate(line) if version.id in keep)
    staying |= {version.id for version in line[: max([0, *read_since, *wanted]) + 1]}
    of_main = {version.id for version in line}
    return {v.id for v in known.values() if v.id not in staying and (v.id in of_main or v.made_at < cut)}


def old_segments(segments: Iterable[ArchivedSegment], ingested: Set[str], *, cut: datetime) -> list[ArchivedSegment]:
    """Segments begun before `cut` that are in the lake, except each recorder's newest per stream, which tells its last seq."""
    newest: dict[tuple[str, str], ArchivedSegment] = {}
    known = list(segments)
    for segment in known:
        place = (segment.stream, segment.node)
        if place not in newest or segment.began_at > newest[place].began_at:
            newest[place] = segment
    staying = {segment.path for segment in newest.values()}
    return sorted(s for s in known if s.began_at < cut and s.path in ingested and s.path not in staying)
