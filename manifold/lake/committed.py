"""The commits of this process to the main branches of tables, kept for the lineage of the job that makes them.

PyIceberg's commits are noted by the catalogs of `manifold.lake.catalog`; Spark's carry the id of their application.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyiceberg.table.update import SetSnapshotRefUpdate, TableUpdate

from manifold.lake.commits import MAIN

MAX_COMMITS_PER_TABLE = 1000  # of a table: a job makes some dozens

Identifier = tuple[str, ...]


class Committed:
    """Snapshots that have become a table's main, oldest first, and the Spark applications that were begun."""

    def __init__(self) -> None:
        self.mains: defaultdict[Identifier, deque[int]] = defaultdict(lambda: deque(maxlen=MAX_COMMITS_PER_TABLE))
        self.applications: set[str] = set()


_watching: tuple[Committed, ...] = ()  # never changed in place: who commits may be another thread


@contextmanager
def watching() -> Iterator[Committed]:
    """The commits of any thread while the block lasts."""
    global _watching  # catalogs and sessions are made where nobody knows of whoever watches
    seen = Committed()
    _watching = (*_watching, seen)
    try:
        yield seen
    finally:
        _watching = tuple(each for each in _watching if each is not seen)


def note_commit(table: Identifier, updates: Sequence[TableUpdate]) -> None:
    """These updates of a table are in its catalog."""
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate) and update.ref_name == MAIN:
            for seen in _watching:
                seen.mains[table].append(update.snapshot_id)


def note_application(application_id: str) -> None:
    """This process works with that application of Spark's from now on."""
    for seen in _watching:
        seen.applications.add(application_id)
