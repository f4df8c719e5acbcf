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
    """What was committed: the ids of snapshots by PyIceberg, and of the Spark applications that wrote all other snapshots."""

    def __init__(self) -> None:
        # By table: the ids of the snapshots that were committed to main, oldest first.
        self.snapshot_ids: defaultdict[Identifier, deque[int]] = defaultdict(lambda: deque(maxlen=MAX_COMMITS_PER_TABLE))
        self.application_ids: set[str] = set()


# The records of all active `recording_commits` blocks. The tuple is replaced, never changed: other threads may iterate over it.
_records: tuple[Committed, ...] = ()


@contextmanager
def recording_commits() -> Iterator[Committed]:
    """Record the commits of all threads during the block, in the record that is yielded."""
    global _records  # global, because catalogs and sessions are created by code that does not know who records their commits
    record = Committed()
    _records = (*_records, record)
    try:
        yield record
    finally:
        _records = tuple(other for other in _records if other is not record)


def record_commit(table: Identifier, updates: Sequence[TableUpdate]) -> None:
    """Record the snapshots to which this commit, made of `updates`, moves the table's main. Other branches are ignored."""
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate) and update.ref_name == MAIN:
            for record in _records:
                record.snapshot_ids[table].append(update.snapshot_id)


def record_application(application_id: str) -> None:
    """Record that this process uses that Spark application from now on."""
    for record in _records:
        record.application_ids.add(application_id)
