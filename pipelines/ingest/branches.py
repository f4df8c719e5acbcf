"""Branches of a run: they hold the run's rows until the run is audited and published."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots

from manifold.contracts.errors import Retryable
from manifold.contracts.tables import EVERY_RUN_TABLE, SEGMENTS, Table
from manifold.lake.catalog import run_tables_of
from manifold.lake.commits import retry_conflicts
from manifold.lake.compat import Change

PREFIX = "run_"
REPEAT = "repeat_"  # prefix of the short-lived branches on which a run's change is rebased
PROPERTY_PREFIX = "manifold."  # prefix of the properties below
# Properties of every snapshot that a run writes.
RUN_ID = "manifold.run-id"
ATTEMPT = "manifold.attempt"  # a random id of the attempt at the run
REPEATS = "manifold.repeats"  # only after a rebase: id of the run's original snapshot, whose change this snapshot repeats
# Properties of a run's snapshot of `ingested_segments`.
PINS = "manifold.pins"  # JSON object: table name → id of the run's snapshot
RESULT = "manifold.result"  # the run's counts as JSON
UNDOES = "manifold.undoes"  # JSON array: snapshot ids of the runs that this run rolls back; or EVERYTHING: all earlier runs
EVERYTHING = "everything"
# Table property of `ingested_segments`: BEGAN + branch name → instant at which an open run began.
BEGAN = "manifold.began."
ABANDONED_AFTER = timedelta(days=1)  # age at which an open run counts as abandoned


class Overtaken(Retryable):
    """The run must start again, and nothing was published.

    Another run was published first, another job has closed this run, or its current attempt has passed no audit.
    """


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """The snapshot of a table that a run has written."""

    table: Table
    snapshot_id: int


def branch_of(run_id: str) -> str:
    """The name of the run's branch: the prefix and the run id.

    Characters of the run id that a name in SQL may not contain are replaced, and a hash of the run id then keeps the name unique.
    """
    sql_name = re.sub(r"\W", "_", run_id, flags=re.ASCII)
    if sql_name == run_id:
        return PREFIX + run_id
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    return f"{PREFIX}{sql_name}_{digest}"


def properties_of(snapshot: Snapshot) -> dict[str, str]:
    """The properties in the snapshot's summary."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def pins_of(snapshots: Mapping[str, int]) -> dict[str, str]:
    """The property of the run's snapshot of `ingested_segments` that names its other snapshots (table name → snapshot id)."""
    return {PINS: json.dumps(dict(sorted(snapshots.items())))}


def pins_in(snapshot: Snapshot) -> list[PinnedSnapshot]:
    """The snapshots that a run's snapshot of `ingested_segments` pins."""
    pins: dict[str, int] = json.loads(properties_of(snapshot)[PINS])
    return [PinnedSnapshot(table, pins[table.name]) for table in EVERY_RUN_TABLE if table.name in pins]


def ancestors(table: IcebergTable) -> Iterator[Snapshot]:
    """Yield the snapshots of main, newest first, back to the oldest that has not expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent_id = snapshot.parent_snapshot_id
        snapshot = by_id.get(parent_id) if parent_id is not None else None


def head_of(catalog: Catalog, table: Table, run_id: str) -> Snapshot | None:
    """The newest snapshot on the run's branch of the table; None if the table has no such branch."""
    return catalog.load_table(table.identifier).snapshot_by_name(branch_of(run_id))


@retry_conflicts
def open_run(catalog: Catalog, run_id: str, snapshot_id: int, now: datetime) -> None:
    """Open the run: create its branch of `ingested_segments` at `snapshot_id`, and record `now` as the start of the run.

    Of the run's branches, this one is created first and dropped last.

    Raises:
        Retryable: another process is working on the same run.
    """
    with Change(_load_without_branch(catalog, SEGMENTS, run_id)) as change:
        change.set_properties({BEGAN + branch_of(run_id): now.isoformat()})
        ManageSnapshots(change).create_branch(snapshot_id, branch_of(run_id)).commit()


@retry_conflicts
def create_branch(catalog: Catalog, table: Table, run_id: str, snapshot_id: int) -> None:
    """Create the run's branch of `table` at `snapshot_id`.

    Raises:
        Overtaken: another job has closed the run.
        Retryable: another process is working on the same run.
    """
    loaded = _load_without_branch(catalog, table, run_id)
    # This check is right before the commit, so that another job has little time to close the run in between.
    if BEGAN + branch_of(run_id) not in catalog.load_table(SEGMENTS.identifier).properties:
        raise Overtaken(f"another job has closed run {run_id}; do it again")
    with Change(loaded) as change:
        ManageSnapshots(change).create_branch(snapshot_id, branch_of(run_id)).commit()


def _load_without_branch(catalog: Catalog, table: Table, run_id: str) -> IcebergTable:
    """Load the table, and raise `Retryable` if it already has the run's branch."""
    loaded = catalog.load_table(table.identifier)
    if branch_of(run_id) in loaded.refs():
        raise Retryable(f"another process is working on run {run_id}; wait for it, or start a new run")
    return loaded


def drop_branches(catalog: Catalog, branch: str) -> None:
    """Close a run: drop its branch from every table that has it, `ingested_segments` last. Snapshots in main stay."""
    for table in run_tables_of(catalog):
        if table is not SEGMENTS:
            drop_branch(catalog, table, branch)
    _drop_ledger_branch(catalog, branch)


@retry_conflicts
def drop_branch(catalog: Catalog, table: Table, branch: str) -> None:
    """Drop a branch of a table, if the branch exists."""
    loaded = catalog.load_table(table.identifier)
    if branch in loaded.refs():
        with Change(loaded) as change:
            ManageSnapshots(change).remove_branch(branch).commit()


@retry_conflicts
def _drop_ledger_branch(catalog: Catalog, branch: str) -> None:
    """Drop the branch of `ingested_segments` and the record of when the run began, in one commit."""
    segments = catalog.load_table(SEGMENTS.identifier)
    with Change(segments) as change:
        if BEGAN + branch in segments.properties:
            change.remove_properties(BEGAN + branch)
        if branch in segments.refs():
            ManageSnapshots(change).remove_branch(branch).commit()


def drop_abandoned(catalog: Catalog, now: datetime) -> list[str]:
    """Drop the branches of runs that began more than a day before `now` and were never published; return the branch names.

    Callers call `finish_committed_runs` first, so committed runs have no branches. If a run is published while its branches
    are dropped here, the next run still finishes it: it is the newest committed run, and its snapshot names all others (`PINS`).
    """
    properties = catalog.load_table(SEGMENTS.identifier).properties
    abandoned: list[str] = []
    for name, began_at in properties.items():
        if name.startswith(BEGAN) and now - datetime.fromisoformat(began_at) > ABANDONED_AFTER:
            abandoned.append(name.removeprefix(BEGAN))
    for branch in abandoned:
        drop_branches(catalog, branch)
    _drop_leftover_branches(catalog, now)
    return abandoned


def _drop_leftover_branches(catalog: Catalog, now: datetime) -> None:
    """Drop branches of killed rebases and of closed runs, if their heads are older than a day.

    A closed run can have a branch: if another job closes the run while it is being written, the run's next commit recreates the
    branch.
    """
    oldest_ms = round((now - ABANDONED_AFTER).timestamp() * 1000)
    for table in run_tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        old_refs = [name for name, ref in loaded.refs().items() if _committed_ms(loaded, ref.snapshot_id) < oldest_ms]
        leftovers = [name for name in old_refs if name.startswith(REPEAT)]
        run_branches = [name for name in old_refs if name.startswith(PREFIX)]
        if run_branches:
            # A run is opened before its branches are created. The properties are read after the branches, so a run without this
            # property was closed, and is not one that has just begun.
            properties = catalog.load_table(SEGMENTS.identifier).properties
            leftovers += [name for name in run_branches if BEGAN + name not in properties]
        for name in leftovers:
            drop_branch(catalog, table, name)


def _committed_ms(table: IcebergTable, snapshot_id: int) -> int:
    """The time at which the snapshot was committed, in ms since the epoch."""
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # snapshots that a ref names do not expire
    return snapshot.timestamp_ms
