"""Rolls back a published run and all later runs. The rollback is one run, so no run can be published in between. No Spark.

No table's main is set back to an earlier snapshot, because a process that is finishing the run would move it forward again.
Instead, each table gets a new snapshot that has the files from before the run. As with every run, main of `ingested_segments`
moves first. So an ingest that began before the rollback is overtaken, and a later ingest does not find the segments in the
ledger, and ingests them again. A rollback can itself be rolled back.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import In
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from manifold.archive.store import Archive
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import EVERY_RUN_TABLE, SEGMENTS
from manifold.lake.catalog import ensure_tables
from manifold.settings import Settings
from pipelines.catalog import await_catalog
from pipelines.ingest.branches import RUN_ID, UNDOES, ancestors, pins_in, properties_of
from pipelines.ingest.lease import rewriting
from pipelines.ingest.ledger import Ledger
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import committed_runs, main_snapshots
from pipelines.ingest.rebase import is_change_of
from pipelines.ingest.restore_snapshot import replace_content
from pipelines.lineage import emits_lineage

HISTORY_EXPIRED = (
    "the lake's history does not reach back to it (MANIFOLD_SNAPSHOT_RETENTION_DAYS); manifold lake restore rebuilds the lake "
    "from the archive"
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Result of a rollback."""

    run_id: str  # of the rollback, which can itself be rolled back
    undone: list[str]  # ids of the runs that were undone, newest first
    segments: int  # number of segments that the next ingest ingests again
    tables: list[str]  # tables that were changed

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


@emits_lineage("rollback")
def rollback_run(settings: Settings, run_id: str) -> RolledBack:
    """Call `rollback` for these settings, with the current time.

    Raises:
        LeaseHeld: another job is rewriting tables.
    """
    catalog = await_catalog(settings)
    with rewriting(catalog, "rollback"):
        return rollback(catalog, settings, run_id=run_id, now=datetime.now(UTC))


def rollback(catalog: Catalog, settings: Settings, *, run_id: str, now: datetime) -> RolledBack:
    """Undo the run and all later runs: give every table the content that it had before the run was published.

    Raises:
        Permanent: the run is not committed, its history is gone, or the archive lacks a segment that must be ingested again.
    """
    ensure_tables(catalog)
    return until_not_overtaken()(lambda: _rollback(catalog, settings, run_id, now))


def _rollback(catalog: Catalog, settings: Settings, run_id: str, now: datetime) -> RolledBack:
    """Make one attempt at the rollback, on main as it is now."""
    segments = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, segments)
    undone = _runs_to_undo(segments, run_id)
    to_restore = _snapshots_before(catalog, undone)
    to_reingest = _paths_to_reingest(segments, base[SEGMENTS.name], to_restore[SEGMENTS.name].snapshot_id, undone)
    archived = {segment.path for segment in Archive(settings.archive, settings.s3).find(to_reingest)}
    missing = sorted(to_reingest - archived)
    if missing:
        raise Permanent(
            f"{len(missing)} segments of these runs are not in the archive any more, {missing[0]} for one; rolling back would "
            "lose them: restore them from a copy first"
        )
    run = MaintenanceRun(catalog, "rollback", base, now)
    for table in EVERY_RUN_TABLE:
        if table.name in to_restore and table is not SEGMENTS:
            run.change(table, partial(replace_content, catalog, table, to_restore[table.name]))
    properties = {UNDOES: json.dumps([snapshot.snapshot_id for snapshot in undone])}
    run.publish(partial(replace_content, catalog, SEGMENTS, to_restore[SEGMENTS.name]), properties)
    undone_ids = [properties_of(snapshot)[RUN_ID] for snapshot in undone]
    result = RolledBack(run.run_id, undone_ids, len(to_reingest), sorted(to_restore))
    log.info(
        "runs rolled back",
        rollback_run_id=result.run_id,
        undone_run_ids=result.undone,
        segments_to_ingest_again=result.segments,
        changed_tables=result.tables,
    )
    return result


def _runs_to_undo(segments: IcebergTable, run_id: str) -> list[Snapshot]:
    """The ledger's snapshots of the run and of all later runs, newest first.

    Raises:
        Permanent: the run is not committed, or its snapshot is expired.
    """
    runs = committed_runs(segments)
    run_ids = [properties_of(run)[RUN_ID] for run in runs]
    if run_id not in run_ids:
        newest_ids = ", ".join(run_ids[:5]) or "none"
        raise Permanent(f"run {run_id} is not committed, or {HISTORY_EXPIRED}; the newest committed runs are: {newest_ids}")
    return runs[: run_ids.index(run_id) + 1]


def _snapshots_before(catalog: Catalog, undone: Sequence[Snapshot]) -> dict[str, Snapshot]:
    """For each table that these runs changed, by its name, the snapshot of main before the oldest of their changes."""
    written: dict[str, set[int]] = {SEGMENTS.name: {run.snapshot_id for run in undone}}
    for run in undone:
        for pinned in pins_in(run):
            written.setdefault(pinned.table.name, set()).add(pinned.snapshot_id)
    changed_tables = [table for table in EVERY_RUN_TABLE if table.name in written]
    return {table.name: _snapshot_before(catalog.load_table(table.identifier), written[table.name]) for table in changed_tables}


def _snapshot_before(table: IcebergTable, written: set[int]) -> Snapshot:
    """The snapshot of main before its oldest snapshot that has the changes of one of the `written` snapshots.

    Raises:
        Permanent: the history of main does not reach back so far.
    """
    # Several snapshots of main may have the changes of the same written snapshot: a merge is repeated after a compaction.
    oldest_change = None
    on_main = set()
    for snapshot in ancestors(table):  # newest first
        changes_of = {snapshot_id for snapshot_id in written if is_change_of(snapshot, snapshot_id)}
        if changes_of:
            oldest_change = snapshot
            on_main |= changes_of
    previous = None
    # Unless the changes of every written snapshot were found, `oldest_change` need not be the oldest.
    if oldest_change is not None and on_main == written and oldest_change.parent_snapshot_id is not None:
        previous = table.snapshot_by_id(oldest_change.parent_snapshot_id)
    if previous is None:
        raise Permanent(f"{'.'.join(table.name()[-2:])}: {HISTORY_EXPIRED}")
    return previous


def _paths_to_reingest(segments: IcebergTable, current: int, to_restore: int, undone: Sequence[Snapshot]) -> set[str]:
    """Paths of the segments that these runs ingested, and that are not in the ledger at the snapshot to restore.

    `current` and `to_restore` are ids of snapshots of the ledger.
    """
    is_of_runs = In(term="run_id", literals={properties_of(run)[RUN_ID] for run in undone})
    ingested = {path for batch in Ledger(segments, current).scan(is_of_runs, "path") for path in batch["path"].to_pylist()}
    return ingested - Ledger(segments, to_restore).known(ingested)
