"""Records this process's commits to main branches, for the lineage of the job that makes them.

PyIceberg's commits are recorded by the catalogs of `manifold.lake.catalog`; Spark's carry the id of their application.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyiceberg.table.update import SetSnapshotRefUpdate, TableUpdate

from manifold.lake.commits import MAIN

MAX_COMMITS_PER_TABLE = 1000  # a job makes some dozens

Identifier = tuple[str, ...]


class Committed:
    """Snapshots that became a table's main, oldest first, and the Spark applications that were started."""

    def __init__(self) -> None:
        self.mains: defaultdict[Identifier, deque[int]] = defaultdict(lambda: deque(maxlen=MAX_COMMITS_PER_TABLE))
        self.applications: set[str] = set()


_watching: tuple[Committed, ...] = ()  # replaced, never changed in place: commits may come from another thread


@contextmanager
def watching() -> Iterator[Committed]:
    """Record the commits of any thread during the block."""
    global _watching  # catalogs and sessions are created by code that does not know the watcher
    seen = Committed()
    _watching = (*_watching, seen)
    try:
        yield seen
    finally:
        _watching = tuple(each for each in _watching if each is not seen)


def note_commit(table: Identifier, updates: Sequence[TableUpdate]) -> None:
    """Record updates of a table that were committed to its catalog."""
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate) and update.ref_name == MAIN:
            for seen in _watching:
                seen.mains[table].append(update.snapshot_id)


def note_application(application_id: str) -> None:
    """Record that this process uses that Spark application from now on."""
    for seen in _watching:
        seen.applications.add(application_id)
