"""Records the commits of this process to main branches, for the lineage of the job that runs in it.

The catalogs of `manifold.lake.catalog` record commits by PyIceberg. For commits by Spark, only the ids of the Spark applications
are recorded: each snapshot that Spark writes has the id of its application.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyiceberg.table.update import SetSnapshotRefUpdate, TableUpdate

from manifold.lake.commits import MAIN

MAX_COMMITS_PER_TABLE = 1000  # a job makes some dozens

Identifier = tuple[str, ...]


class Committed:
    """For each table, the ids of the snapshots that were committed to main, oldest first; and the Spark applications used."""

    def __init__(self) -> None:
        self.mains: defaultdict[Identifier, deque[int]] = defaultdict(lambda: deque(maxlen=MAX_COMMITS_PER_TABLE))
        self.applications: set[str] = set()


# The records of all active `watching` blocks. The tuple is replaced, never changed, because other threads may iterate over it.
_records: tuple[Committed, ...] = ()


@contextmanager
def watching() -> Iterator[Committed]:
    """Record, during the block, the commits of all threads."""
    global _records  # global, because catalogs and sessions are created by code that does not know who watches
    record = Committed()
    _records = (*_records, record)
    try:
        yield record
    finally:
        _records = tuple(other for other in _records if other is not record)


def note_commit(table: Identifier, updates: Sequence[TableUpdate]) -> None:
    """Record the updates of main in a commit to this table."""
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate) and update.ref_name == MAIN:
            for record in _records:
                record.mains[table].append(update.snapshot_id)


def note_application(application_id: str) -> None:
    """Record that this process uses that Spark application from now on."""
    for record in _records:
        record.applications.add(application_id)
