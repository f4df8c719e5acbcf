"""Publication: one compare-and-swap commits a run. If a run crashes while it is being published, the next run finishes it.

A run writes at most one snapshot per table, to its branch `run_…` of the table, on top of the table's main as of the start of
the run (the *base*). The snapshot of `ingested_segments` is written last and names the run's other snapshots (the *pins*).

The commit point moves main of `ingested_segments` from the base to the run's snapshot. This fails if another run was published
first, and the run must then start again. After the commit point, the run is *finished*, by itself or by any later run: main of
every other table is moved to the pinned snapshot. If compaction has rewritten the files of main since the run began, the run's
change is repeated on top of main instead (`rebase`).

The base snapshots of a run must be consistent with each other. So the run loads `ingested_segments`, finishes the runs committed
in the loaded main, and only then reads the mains of the other tables (`main_snapshots`). If another run is published after
`ingested_segments` was loaded, the commit point fails. It follows that a committed run is in every main before the next run can
commit. So a committed run can be unfinished only if it is the newest, or has an open branch.

Jobs that change rows on which ingest relies (data, meta, outcomes) do so in a run. Compaction changes files but no rows, and
moves the mains directly. Only one of the jobs that rewrite tables holds the lease at a time (`lease`), and of these jobs' runs,
only the holder's can be committed.
"""

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from manifold.contracts.errors import OutcomeUnknown, Retryable
from manifold.contracts.tables import SEGMENTS, Table
from manifold.lake.catalog import run_tables_of, where
from manifold.lake.commits import MAIN
from manifold.lake.compat import commit
from manifold.lake.versions import require_not_newer
from pipelines.ingest.branches import (
    EVERYTHING,
    PINS,
    RUN_ID,
    UNDOES,
    Overtaken,
    PinnedSnapshot,
    ancestors,
    branch_of,
    drop_branches,
    head_of,
    pins_in,
    properties_of,
)
from pipelines.ingest.lease import fence
from pipelines.ingest.rebase import is_change_of, rebase_onto

MAX_COMMIT_ATTEMPTS = 60  # attempts at a commit to a table
COMMIT_REPLY_RETENTION = timedelta(days=2)  # a client that missed the reply to its commit may retry this long

Fence = Callable[[IcebergTable], tuple[TableRequirement, ...]]

log = structlog.get_logger(__name__)


def publish(
    catalog: Catalog, run_id: str, passed_audit: Callable[[Snapshot], bool] = lambda _: True, *, must: bool = False
) -> bool:
    """Commit the run and move every main to its snapshots; return False if it has nothing to publish. Idempotent.

    `passed_audit` is called with the run's snapshot of `ingested_segments` before it is committed. With `must`, the caller knows
    that the run was written, so a missing branch is an error.

    Raises:
        Overtaken: another run was published since this run began, `passed_audit` returned False, or, with `must`,
            another job has closed the run. Nothing was published.
        LeaseLost: another job has taken this job's lease. Nothing was published.
    """
    written = head_of(catalog, SEGMENTS, run_id)
    is_written = written is not None and properties_of(written).get(RUN_ID) == run_id
    # Without a branch, the run may have been published so long ago that its snapshot has expired, so its rows are looked up too.
    is_done = is_committed(catalog.load_table(SEGMENTS.identifier), run_id) if is_written else is_published(catalog, run_id)
    if is_done:
        log.info("run already committed", run_id=run_id)
        finish_committed_runs(catalog)
        return True
    if written is None or not is_written or written.parent_snapshot_id is None:
        if must:
            raise Overtaken(f"another job has closed run {run_id}; do it again")
        log.info("nothing to publish: no rows of the run are on its branches", run_id=run_id)
        return False
    if not passed_audit(written):
        raise Overtaken(f"run {run_id} was written again, and this attempt has passed no audit; ingest it again")
    if not _move_main(catalog, SEGMENTS, written.parent_snapshot_id, written.snapshot_id, fenced_by=fence):
        raise Overtaken(f"run {run_id} began before another run was published; ingest it again")
    log.info("run committed", run_id=run_id, snapshot=written.snapshot_id)
    finish_committed_runs(catalog)
    return True


def finish_committed_runs(catalog: Catalog, segments: IcebergTable | None = None) -> None:
    """Finish committed runs: move every main to their snapshots, and drop their branches.

    Runs count as committed if main of `segments` contains them. By default, the table is loaded now.
    """
    table = segments or catalog.load_table(SEGMENTS.identifier)
    for run in unfinished(table):
        for pinned in pins_in(run):
            _fast_forward(catalog, pinned, run)
        drop_branches(catalog, branch_of(properties_of(run)[RUN_ID]))


def main_snapshots(catalog: Catalog, segments: IcebergTable) -> dict[str, int]:
    """Table name → id of main's snapshot, all consistent with each other.

    The snapshot of `ingested_segments` is that of `segments` as loaded. The snapshots of the other tables contain every run
    that is committed in that snapshot.
    """
    finish_committed_runs(catalog, segments)
    return current_snapshots(catalog, segments)


def current_snapshots(catalog: Catalog, segments: IcebergTable) -> dict[str, int]:
    """Table name → id of main's snapshot: of `ingested_segments` as loaded in `segments`, of all other tables at present.

    Raises:
        Permanent: a table is newer than this code.
    """
    snapshots: dict[str, int] = {}
    for table in run_tables_of(catalog):
        loaded = segments if table is SEGMENTS else catalog.load_table(table.identifier)
        snapshots[table.name] = _main_snapshot_id(loaded, table)
    return snapshots


def _main_snapshot_id(table: IcebergTable, definition: Table) -> int:
    """The id of main's snapshot; raises `Permanent` if the table is newer than its definition in this code."""
    # If a migration is published after this check, the run with this base can no longer be published: a migration is a run too.
    require_not_newer(table, definition)
    snapshot = table.current_snapshot()
    assert snapshot is not None, f"{table.name()} has no snapshot; ensure_tables gives it one"
    return snapshot.snapshot_id


def unfinished(segments: IcebergTable) -> list[Snapshot]:
    """Committed runs that may be missing from some main, oldest first: the newest run, and all runs with an open branch.

    The newest run counts even without a branch. Its branch of `ingested_segments` is normally dropped last, but another attempt
    at the same run may have dropped it already.
    """
    newest_first = committed_runs(segments)
    candidates = [run for run in newest_first if run is newest_first[0] or _is_open(segments, run)]
    return candidates[::-1]  # oldest first


def committed_runs(segments: IcebergTable) -> list[Snapshot]:
    """Snapshots of committed runs, newest first, back to the oldest that has not expired; without runs that were rolled back.

    A run that rolls back others is itself returned. If it was rolled back in turn, it is left out, and those others are returned.
    """
    runs: list[Snapshot] = []
    undone: set[int] = set()
    for snapshot in ancestors(segments):
        properties = properties_of(snapshot)
        if PINS in properties and snapshot.snapshot_id not in undone:
            runs.append(snapshot)
            if properties.get(UNDOES) == EVERYTHING:
                break  # all earlier runs are rolled back
            undone.update(json.loads(properties.get(UNDOES, "[]")))
    return runs


def _is_unfinished(catalog: Catalog, run: Snapshot) -> bool:
    """Whether the committed run may still be missing from some main."""
    candidates = unfinished(catalog.load_table(SEGMENTS.identifier))
    return run.snapshot_id in {candidate.snapshot_id for candidate in candidates}


def _is_open(segments: IcebergTable, run: Snapshot) -> bool:
    """Whether the run's branch of `ingested_segments` still exists, at the run's snapshot."""
    branch = segments.refs().get(branch_of(properties_of(run)[RUN_ID]))
    return branch is not None and branch.snapshot_id == run.snapshot_id


def is_published(catalog: Catalog, run_id: str, now: datetime | None = None) -> bool:
    """Whether the run is committed: main of `ingested_segments` has its snapshot or, if that has expired, its rows.

    With `now`, rows older than `COMMIT_REPLY_RETENTION` do not count: if the run id is used again after that, it names a new run.
    """
    table = catalog.load_table(SEGMENTS.identifier)
    if is_committed(table, run_id):
        return True
    row_filter: BooleanExpression = where(EqualTo, "run_id", run_id)
    if now is not None:
        row_filter = And(row_filter, where(GreaterThanOrEqual, "ingested_at", now - COMMIT_REPLY_RETENTION))
    return bool(table.scan(row_filter, ("path",), limit=1).to_arrow().num_rows)


def is_committed(segments: IcebergTable, run_id: str) -> bool:
    """Whether main of `ingested_segments` has the run's snapshot, and no later run has rolled it back.

    While the run's branch is open, the snapshot cannot expire.
    """
    return any(properties_of(run)[RUN_ID] == run_id for run in committed_runs(segments))


def _fast_forward(catalog: Catalog, pinned: PinnedSnapshot, run: Snapshot) -> None:
    """Move main of the table to the pinned snapshot of a committed run, or to a rebase of that snapshot."""
    run_id = properties_of(run)[RUN_ID]
    for _ in range(MAX_COMMIT_ATTEMPTS):
        table = catalog.load_table(pinned.table.identifier)
        main = table.current_snapshot()
        if is_in_main(table, pinned.snapshot_id):
            return
        written = table.snapshot_by_id(pinned.snapshot_id)
        is_next = main is not None and written is not None and written.parent_snapshot_id == main.snapshot_id
        if not is_next and not _is_unfinished(catalog, run):
            # While this process was paused, another one finished the run. Main has the change, even if the snapshot by which
            # `is_in_main` recognizes it has expired.
            log.info("committed run finished by another process", run_id=run_id, table=pinned.table.name)
            return
        if main is None or written is None:
            raise OutcomeUnknown(
                f"{pinned.table.identifier} has lost snapshot {pinned.snapshot_id} of a committed run; restore its metadata "
                "and run this again, or restore the lake from the archive: manifold lake restore"
            )
        target = written.snapshot_id
        if not is_next:
            log.info("main was compacted since the run began; rebasing the run", run_id=run_id, table=pinned.table.name)
            target = rebase_onto(catalog, pinned.table, written, main)
        if _move_main(catalog, pinned.table, main.snapshot_id, target, drop_branch=branch_of(run_id)):
            return
    raise Retryable(f"too many concurrent commits to {pinned.table.identifier}; try again")


def is_in_main(table: IcebergTable, snapshot_id: int) -> bool:
    """Whether main contains this snapshot of a run, or its rebase."""
    return any(is_change_of(snapshot, snapshot_id) for snapshot in ancestors(table))


def _move_main(
    catalog: Catalog,
    table: Table,
    expected: int,
    target: int,
    *,
    drop_branch: str | None = None,
    fenced_by: Fence = lambda _: (),
) -> bool:
    """Move main from snapshot `expected` to snapshot `target`, and drop the branch `drop_branch`, if any, in the same commit.

    `fenced_by` returns additional requirements of the commit. Returns whether main contains `target`; if not, main was at
    another snapshot than `expected`, and stays. If the reply to the commit is lost, main is read again.
    """
    for _ in range(MAX_COMMIT_ATTEMPTS):
        loaded = catalog.load_table(table.identifier)
        main = loaded.current_snapshot()
        if main is None or main.snapshot_id != expected:
            # An earlier commit of this loop may have succeeded without a reply, and another run may be on top of `target` by now.
            return is_in_main(loaded, target)
        move = SetSnapshotRefUpdate.model_validate({"ref-name": MAIN, "type": "branch", "snapshot-id": target})
        updates: list[TableUpdate] = [move]
        if drop_branch is not None and drop_branch in loaded.refs():
            updates.append(RemoveSnapshotRefUpdate.model_validate({"ref-name": drop_branch}))
        guards = (AssertTableUUID(uuid=loaded.metadata.table_uuid), AssertRefSnapshotId(ref=MAIN, snapshot_id=expected))
        try:
            commit(loaded, (*guards, *fenced_by(loaded)), tuple(updates))
        except (CommitFailedException, CommitStateUnknownException):
            continue  # another ref moved, or the reply was lost: load the table again
        return True
    raise Retryable(f"too many concurrent commits to {table.identifier}; try again")
