"""Publication: one compare-and-swap commits a run. The next run finishes what a crashed run left half published.

A run writes at most one snapshot per table, each on the table's branch `run_…` and based on main as of the start of the run.
Its snapshot of `ingested_segments` is written last and names the others (the *pins*). Moving main of `ingested_segments` from
the run's base snapshot to this one is the commit point: it fails if another run was faster, and the run must then be done
again. Afterwards the run itself, or any later one, brings the pinned snapshots to the other mains: it moves main to the
snapshot or, where compaction has rewritten main's files in the meantime, repeats the change on top (`rebase`).

The base snapshots of a run must be consistent: it reads main of `ingested_segments`, finishes the runs committed in *that*
snapshot, and only then reads the other mains (`main_snapshots`). A run that is published after that read overtakes it.
So a committed run is in every main before the next can commit: only the newest run, or one with an open branch, is unfinished.

Jobs that change rows on which ingest relies (data, meta, outcomes) do so in a run; compaction, which changes files and no rows,
moves mains directly. Of the jobs that rewrite, one at a time holds the lease (`lease`), and only its holder's runs can commit.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
)

from manifold.contracts.errors import OutcomeUnknown, Retryable
from manifold.contracts.tables import EVERY_RUN_TABLE, SEGMENTS, Table
from manifold.lake.catalog import run_tables_of, where
from manifold.lake.commits import MAIN
from manifold.lake.versions import require_not_newer
from pipelines.ingest.branches import (
    EVERYTHING,
    PINS,
    RUN_ID,
    UNDOES,
    ConcurrentPublish,
    ancestors,
    branch_of,
    commit,
    drop_branches,
    head_of,
    properties_of,
)
from pipelines.ingest.lease import fence
from pipelines.ingest.rebase import is_change_of, repeat

MAX_ATTEMPTS = 60
COMMIT_REPLY_RETENTION = timedelta(days=2)  # a client that missed the commit reply may retry this long

Fence = Callable[[IcebergTable], tuple[TableRequirement, ...]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """One table's snapshot in a run."""

    table: Table
    snapshot_id: int


def publish(
    catalog: Catalog, run_id: str, passed_audit: Callable[[Snapshot], bool] = lambda _: True, *, must: bool = False
) -> bool:
    """Commit the run and bring it to every main; False if it has nothing to publish. Idempotent.

    `passed_audit` is called with the snapshot that would be committed. With `must`, the caller has written the run, so a missing
    branch is an error.

    Raises:
        ConcurrentPublish: another run was published since this one began, `passed_audit` refused the snapshot on the branch,
            or, with `must`, another job has closed the run.
        LeaseLost: another job has taken the lease of this job, which rewrites tables. Nothing was published.
    """
    written = head_of(catalog, SEGMENTS, run_id)
    mine = written is not None and properties_of(written).get(RUN_ID) == run_id
    is_done = is_committed(catalog.load_table(SEGMENTS.identifier), run_id) if mine else is_published(catalog, run_id)
    if is_done:
        log.info("run already committed", run_id=run_id)
    elif written is None or not mine or written.parent_snapshot_id is None:
        if must:
            raise ConcurrentPublish(f"another job has closed run {run_id}; do it again")
        log.info("nothing to publish", run_id=run_id)
        return False
    elif not passed_audit(written):
        raise ConcurrentPublish(f"run {run_id} was written again, and this attempt has passed no audit; ingest it again")
    elif not _move_main(catalog, SEGMENTS, written.parent_snapshot_id, written.snapshot_id, fenced_by=fence):
        raise ConcurrentPublish(f"run {run_id} began before another run was published; ingest it again")
    else:
        log.info("run committed", run_id=run_id, snapshot=written.snapshot_id)
    finish_committed_runs(catalog)
    return True


def finish_committed_runs(catalog: Catalog, segments: IcebergTable | None = None) -> None:
    """Bring every run committed (in `segments` as loaded, or by now) to every main, and drop its branches."""
    table = segments or catalog.load_table(SEGMENTS.identifier)
    for run in unfinished(table):
        for pinned in pins_in(run):
            _fast_forward(catalog, pinned, run)
        drop_branches(catalog, branch_of(properties_of(run)[RUN_ID]))


def main_snapshots(catalog: Catalog, segments: IcebergTable) -> dict[str, int]:
    """Consistent snapshots of main, by table name: that of `segments` as loaded, the others with every run committed in it."""
    finish_committed_runs(catalog, segments)
    return current_snapshots(catalog, segments)


def current_snapshots(catalog: Catalog, segments: IcebergTable) -> dict[str, int]:
    """The snapshot id of main by table name; that of `ingested_segments` as loaded in `segments`.

    Raises:
        Permanent: a table is newer than this code.
    """
    tables = run_tables_of(catalog)
    return {t.name: _main_snapshot_id(segments if t is SEGMENTS else catalog.load_table(t.identifier), t) for t in tables}


def _main_snapshot_id(table: IcebergTable, known: Table) -> int:
    require_not_newer(table, known)  # after the base is read, so that a later migration overtakes the run
    snapshot = table.current_snapshot()
    assert snapshot is not None, f"{table.name()} has no snapshot; ensure_tables gives it one"
    return snapshot.snapshot_id


def unfinished(segments: IcebergTable) -> list[Snapshot]:
    """Committed runs that may be missing from some main: the newest, and those with an open branch; oldest first.

    A run's branch of `ingested_segments` is dropped last, but another attempt at the same run may have dropped it already.
    """
    return [s for place, s in enumerate(committed_runs(segments)) if place == 0 or _is_open(segments, s)][::-1]


def committed_runs(segments: IcebergTable) -> list[Snapshot]:
    """Snapshots of committed runs, newest first, as far back as they are kept, without runs that were rolled back."""
    runs: list[Snapshot] = []
    undone: set[int] = set()
    for snapshot in ancestors(segments):
        properties = properties_of(snapshot)
        if PINS in properties and snapshot.snapshot_id not in undone:
            runs.append(snapshot)
            if properties.get(UNDOES) == EVERYTHING:
                break
            undone.update(json.loads(properties.get(UNDOES, "[]")))
    return runs


def _is_unfinished(catalog: Catalog, run: Snapshot) -> bool:
    return any(run.snapshot_id == left.snapshot_id for left in unfinished(catalog.load_table(SEGMENTS.identifier)))


def _is_open(segments: IcebergTable, run: Snapshot) -> bool:
    branch = segments.refs().get(branch_of(properties_of(run)[RUN_ID]))
    return branch is not None and branch.snapshot_id == run.snapshot_id


def is_published(catalog: Catalog, run_id: str, now: datetime | None = None) -> bool:
    """Whether the run is committed: its snapshot or, once snapshots have expired, its rows are in main of `ingested_segments`.

    With `now`, only rows of the last days count: a run id that is used again after that names a new run.
    """
    table = catalog.load_table(SEGMENTS.identifier)
    if is_committed(table, run_id):
        return True
    mine = where(EqualTo, "run_id", run_id)
    lately = mine if now is None else And(mine, where(GreaterThanOrEqual, "ingested_at", now - COMMIT_REPLY_RETENTION))
    return bool(table.scan(lately, ("path",), limit=1).to_arrow().num_rows)


def is_committed(segments: IcebergTable, run_id: str) -> bool:
    """Whether the run is committed, by the snapshots that are kept; sufficient while the run's branch is open."""
    return any(properties_of(s)[RUN_ID] == run_id for s in committed_runs(segments))


def pins_of(snapshots: Mapping[str, int]) -> dict[str, str]:
    """The summary property that names a run's snapshots, by table name."""
    return {PINS: json.dumps(dict(sorted(snapshots.items())))}


def pins_in(snapshot: Snapshot) -> list[PinnedSnapshot]:
    """The snapshots pinned by a run's snapshot of `ingested_segments`."""
    named: dict[str, int] = json.loads(properties_of(snapshot)[PINS])
    return [PinnedSnapshot(table, named[table.name]) for table in EVERY_RUN_TABLE if table.name in named]


def _fast_forward(catalog: Catalog, pinned: PinnedSnapshot, run: Snapshot) -> None:
    run_id = properties_of(run)[RUN_ID]
    for _ in range(MAX_ATTEMPTS):
        table = catalog.load_table(pinned.table.identifier)
        main = table.current_snapshot()
        if is_in_main(table, pinned.snapshot_id):
            return
        written = table.snapshot_by_id(pinned.snapshot_id)
        is_next = main is not None and written is not None and written.parent_snapshot_id == main.snapshot_id
        if not is_next and not _is_unfinished(catalog, run):
            # This process was paused: main has the change, although the snapshot that shows it may have expired.
            log.info("run finished by another process", run_id=run_id)
            return
        if main is None or written is None:
            raise OutcomeUnknown(
                f"{pinned.table.identifier} has lost snapshot {pinned.snapshot_id} of a committed run; restore its metadata "
                "and run this again, or restore the lake from the archive: manifold lake restore"
            )
        target = written.snapshot_id
        if not is_next:
            log.info("main was compacted since the run began; rebasing", table=pinned.table.name)
            target = repeat(catalog, pinned.table, written, main)
        if _move_main(catalog, pinned.table, main.snapshot_id, target, and_drop=branch_of(run_id)):
            return
    raise Retryable(f"too many concurrent commits to {pinned.table.identifier}; try again")


def is_in_main(table: IcebergTable, snapshot_id: int) -> bool:
    """Whether main contains the change that a run wrote as this snapshot: the snapshot itself, or its rebase."""
    return any(is_change_of(snapshot, snapshot_id) for snapshot in ancestors(table))


def _move_main(
    catalog: Catalog, table: Table, expected: int, target: int, *, and_drop: str = "", fenced_by: Fence = lambda _: ()
) -> bool:
    """Move main from `expected` to `target`, and drop branch `and_drop` in the same commit; False if main was elsewhere.

    After a lost reply, main is read again. `fenced_by` returns further requirements of the commit.
    """
    for _ in range(MAX_ATTEMPTS):
        loaded = catalog.load_table(table.identifier)
        main = loaded.current_snapshot()
        if main is None or main.snapshot_id != expected:
            return is_in_main(loaded, target)  # the reply was lost; by now, another run may have been published on top
        move = SetSnapshotRefUpdate.model_validate({"ref-name": MAIN, "type": "branch", "snapshot-id": target})
        drops = [RemoveSnapshotRefUpdate.model_validate({"ref-name": and_drop})] if and_drop in loaded.refs() else []
        guards = (AssertTableUUID(uuid=loaded.metadata.table_uuid), AssertRefSnapshotId(ref=MAIN, snapshot_id=expected))
        try:
            commit(loaded, (*guards, *fenced_by(loaded)), (move, *drops))
        except (CommitFailedException, CommitStateUnknownException):
            continue  # another ref moved, or the reply was lost: read again
        return True
    raise Retryable(f"too many concurrent commits to {table.identifier}; try again")
