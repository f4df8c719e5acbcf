"""Decides which days are read, and which snapshots and segments may be removed. Pure, without a clock.

The steps of garbage collection have a fixed order, so that a step removes nothing that is still needed, even if the run dies
between two steps:

1. everything recorded before the cutoff is ingested, so that every trigger that could refer to old data has rows in the lake;
2. entries past the retention end as `expired`: first in the queues, so that none is sent any more, then in the lake;
3. data past the retention is removed, unless an entry without an outcome refers to it;
4. only then files: snapshots that no reader can be using, files that no snapshot references, segments that are in the lake.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import date, datetime


@dataclass(frozen=True, slots=True)
class Version:
    """One snapshot of a table. `parent` is None for the first snapshot, and if the parent is expired."""

    id: int
    parent: int | None
    made_at: datetime


@dataclass(frozen=True, slots=True, order=True)
class ArchivedSegment:
    """One segment of the archive. `node` is the number of the recorder that wrote it, or empty if the file's name has none."""

    path: str
    stream: str
    node: str
    began_at: datetime


def days_to_read(entries: Mapping[date, int], closed: Mapping[date, int], *, before: date) -> list[date]:
    """The days before `before` that may have an open entry.

    `entries` has the current number of entries of each day, and `closed` the number that a day had when all its entries had
    ended. A day on which these numbers are equal has no open entry.
    """
    return sorted(day for day, count in entries.items() if day < before and closed.get(day) != count)


def old_versions(
    versions: Iterable[Version], heads: Collection[int], main: int, *, keep: Collection[int], cutoff: datetime
) -> set[int]:
    """Return the ids of the snapshots that may be expired. `heads` has the heads of all branches, `main` the head of main.

    On main, these snapshots stay: those that were main's newest at any moment since `cutoff`, so that readers that began then can
    finish; and main's history down to the oldest snapshot in `keep`, because publication looks for the newest run among main's
    ancestors. On other branches, the head and its parent stay: the parent is the snapshot on which the run began. Snapshots on no
    branch are expired if they were made before `cutoff`.
    """
    version_by_id = {version.id: version for version in versions}
    staying = set(heads)
    for head in set(heads) - {main}:
        parent = version_by_id[head].parent
        if parent is not None:
            staying.add(parent)
    history = _history(version_by_id, main)
    oldest_staying = 0  # index in `history`; main's head always stays
    for index, version in enumerate(history):
        # A snapshot stopped being main's newest when its successor was made.
        was_newest_since_cutoff = index > 0 and history[index - 1].made_at >= cutoff
        if was_newest_since_cutoff or version.id in keep:
            oldest_staying = index
    staying |= {version.id for version in history[: oldest_staying + 1]}
    on_main = {version.id for version in history}
    return {
        version.id
        for version in version_by_id.values()
        if version.id not in staying and (version.id in on_main or version.made_at < cutoff)
    }


def _history(version_by_id: Mapping[int, Version], head: int) -> list[Version]:
    """The snapshot `head` and its ancestors, newest first, as far back as they are kept."""
    history: list[Version] = []
    version = version_by_id.get(head)
    while version is not None:
        history.append(version)
        version = version_by_id.get(version.parent) if version.parent is not None else None
    return history


def old_segments(segments: Iterable[ArchivedSegment], ingested: Set[str], *, cutoff: datetime) -> list[ArchivedSegment]:
    """Return the segments that began before `cutoff` and whose paths are in `ingested`, without the newest of each writer.

    A writer is a recorder and a stream. Its newest segment stays, because the recorder reads its last seq from it.
    """
    newest: dict[tuple[str, str], ArchivedSegment] = {}
    all_segments = list(segments)
    for segment in all_segments:
        writer = (segment.stream, segment.node)
        if writer not in newest or segment.began_at > newest[writer].began_at:
            newest[writer] = segment
    staying = {segment.path for segment in newest.values()}
    return sorted(
        segment
        for segment in all_segments
        if segment.began_at < cutoff and segment.path in ingested and segment.path not in staying
    )
