"""A run's branches, which hold its rows until they are audited and published."""

import hashlib
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import ManageSnapshots

from manifold.contracts.errors import Retryable
from manifold.contracts.tables import SEGMENTS, Table
from manifold.lake import compat
from manifold.lake.catalog import run_tables_of
from manifold.lake.commits import retry_conflicts
from manifold.lake.compat import Change

PREFIX = "run_"
REPEAT = "repeat_"  # prefix of the short-lived branches on which a run's change is rebased
OURS = "manifold."  # prefix of the properties below
RUN_ID = "manifold.run-id"  # on every snapshot that a run writes
ATTEMPT = "manifold.attempt"  # distinguishes attempts at one run
REPEATS = "manifold.repeats"  # the snapshot whose change this one repeats, because main was rewritten in the meantime
PINS = "manifold.pins"  # of `ingested_segments` only: JSON, table → snapshot id
UNDOES = "manifold.undoes"  # of `ingested_segments` only: snapshots of runs rolled back, as JSON; EVERYTHING: all runs before
EVERYTHING = "everything"
BEGAN = "manifold.began."  # table property of `ingested_segments`, + branch: when an open run began
RESULT = "manifold.result"  # of `ingested_segments` only: the run's counts
ABANDONED_AFTER = timedelta(days=1)


class ConcurrentPublish(Retryable):
    """Another run was published first, or has closed this one. Nothing happened; do the run again."""


def branch_of(run_id: str) -> str:
    """The name of the run's branch; a run id may contain characters that a name in SQL may not."""
    plain = re.sub(r"\W", "_", run_id, flags=re.ASCII)
    return PREFIX + (plain if plain == run_id else f"{plain}_{hashlib.sha256(run_id.encode()).hexdigest()[:8]}")


def properties_of(snapshot: Snapshot) -> dict[str, str]:
    """The properties in the snapshot's summary."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def ancestors(table: IcebergTable) -> Iterator[Snapshot]:
    """Main's snapshots, newest first, as far back as they are kept."""
    known = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = known.get(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None


def head_of(catalog: Catalog, table: Table, run_id: str) -> Snapshot | None:
    """The newest snapshot on the run's branch; None without a branch."""
    return catalog.load_table(table.identifier).snapshot_by_name(branch_of(run_id))


def commit(table: IcebergTable, guards: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]) -> None:
    """Commit metadata updates if the requirements hold, and delete old metadata files as PyIceberg's own commits do."""
    compat.commit(table, guards, updates)


@retry_conflicts
def open_run(catalog: Catalog, run_id: str, snapshot_id: int, now: datetime) -> None:
    """Open the run: create its branch of `ingested_segments` at `snapshot_id` and record when. This branch is dropped last.

    Raises:
        Retryable: another process works on the same run.
    """
    with Change(_without_branch(catalog, SEGMENTS, run_id)) as change:
        change.set_properties({BEGAN + branch_of(run_id): now.isoformat()})
        ManageSnapshots(change).create_branch(snapshot_id, branch_of(run_id)).commit()


@retry_conflicts
def create_branch(catalog: Catalog, table: Table, run_id: str, snapshot_id: int) -> None:
    """Create the run's branch of `table` at `snapshot_id`.

    Raises:
        ConcurrentPublish: another job has closed the run.
        Retryable: another process works on the same run.
    """
    loaded = _without_branch(catalog, table, run_id)
    # Last, so that a job that closes the run has the least time to do it before the commit.
    if BEGAN + branch_of(run_id) not in catalog.load_table(SEGMENTS.identifier).properties:
        raise ConcurrentPublish(f"another job has closed run {run_id}; do it again")
    with Change(loaded) as change:
        ManageSnapshots(change).create_branch(snapshot_id, branch_of(run_id)).commit()


def _without_branch(catalog: Catalog, table: Table, run_id: str) -> IcebergTable:
    loaded = catalog.load_table(table.identifier)
    if branch_of(run_id) in loaded.refs():
        raise Retryable(f"another process is working on run {run_id}; wait for it, or start a new run")
    return loaded


def drop_branches(catalog: Catalog, branch: str) -> None:
    """Close a run: drop its branch from every table that has it. Snapshots that are in main stay."""
    for table in run_tables_of(catalog):
        if table is not SEGMENTS:
            drop_branch(catalog, table, branch)
    _remove_properties(catalog, branch)


@retry_conflicts
def drop_branch(catalog: Catalog, table: Table, branch: str) -> None:
    """Drop one branch of one table, if it exists."""
    loaded = catalog.load_table(table.identifier)
    if branch in loaded.refs():
        with Change(loaded) as change:
            ManageSnapshots(change).remove_branch(branch).commit()


@retry_conflicts
def _remove_properties(catalog: Catalog, branch: str) -> None:
    segments = catalog.load_table(SEGMENTS.identifier)
    with Change(segments) as change:
        if BEGAN + branch in segments.properties:
            change.remove_properties(BEGAN + branch)
        if branch in segments.refs():
            ManageSnapshots(change).remove_branch(branch).commit()


def drop_abandoned(catalog: Catalog, now: datetime) -> list[str]:
    """Drop the branches of runs that began more than a day ago and were never published; return the branch names.

    Branches of committed runs are gone by then, because `finish_committed_runs` comes first. A run published at this very
    moment is the newest one, and is finished from its pins.
    """
    properties = catalog.load_table(SEGMENTS.identifier).properties
    began = {name.removeprefix(BEGAN): datetime.fromisoformat(at) for name, at in properties.items() if name.startswith(BEGAN)}
    abandoned = [branch for branch, at in began.items() if now - at > ABANDONED_AFTER]
    for branch in abandoned:
        drop_branches(catalog, branch)
    _drop_stray_branches(catalog, now)
    return abandoned


def _drop_stray_branches(catalog: Catalog, now: datetime) -> None:
    """Drop old branches left by killed rebases, and branches of runs that are not open.

    If another job closes a run while it is being written, the run's next commit recreates its branch.
    """
    before_ms = round((now - ABANDONED_AFTER).timestamp() * 1000)
    for table in run_tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        old = [name for name, ref in loaded.refs().items() if _made_ms(loaded, ref.snapshot_id) < before_ms]
        strays = [name for name in old if name.startswith(REPEAT)]
        if any(name.startswith(PREFIX) for name in old):
            # Read after the branches: a run that has one and is not open by then has been closed.
            is_open = catalog.load_table(SEGMENTS.identifier).properties
            strays += [name for name in old if name.startswith(PREFIX) and BEGAN + name not in is_open]
        for name in strays:
            drop_branch(catalog, table, name)


def _made_ms(table: IcebergTable, snapshot_id: int) -> int:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # a ref's snapshot is kept
    return snapshot.timestamp_ms
