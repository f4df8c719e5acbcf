"""Rolls back a published run and all runs after it, in one run of its own, so that nothing can come between. No Spark.

No main moves backwards, because a process finishing the run at that moment would move it forward again. Instead, each table gets
a snapshot with the files from before the run. Main of `ingested_segments` moves first, as with every run: an ingest that began
before the rollback is overtaken, and a later one finds the segments unknown and ingests them again. A rollback can itself be
rolled back.
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
from pipelines.ingest.branches import RUN_ID, UNDOES, ancestors, properties_of
from pipelines.ingest.lease import rewriting
from pipelines.ingest.ledger import Ledger
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import committed_runs, main_snapshots, pins_in
from pipelines.ingest.rebase import is_change_of
from pipelines.ingest.restore_snapshot import replace_content
from pipelines.lineage import emits_lineage

EXPIRED = (
    "the lake's history does not reach back to it (MANIFOLD_SNAPSHOT_RETENTION_DAYS); manifold lake restore rebuilds the lake "
    "from the archive"
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Result of a rollback."""

    run_id: str  # of the rollback, which can itself be rolled back
    undone: list[str]  # runs, newest first
    segments: int  # that the next ingest ingests again
    tables: list[str]

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


@emits_lineage("rollback")
def rollback_run(settings: Settings, run_id: str) -> RolledBack:
    """`rollback` for these settings, as of now.

    Raises:
        LeaseHeld: another job is rewriting tables.
    """
    catalog = await_catalog(settings)
    with rewriting(catalog, "rollback"):
        return rollback(catalog, settings, run_id=run_id, now=datetime.now(UTC))


def rollback(catalog: Catalog, settings: Settings, *, run_id: str, now: datetime) -> RolledBack:
    """Give every table the content it had before the run was published; that run and all later ones are undone.

    Raises:
        Permanent: the run is not committed, its history is gone, or the archive lacks a segment that must be ingested again.
    """
    ensure_tables(catalog)
    return until_not_overtaken()(lambda: _rollback(catalog, settings, run_id, now))


def _rollback(catalog: Catalog, settings: Settings, run_id: str, now: datetime) -> RolledBack:
    segments = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, segments)
    undone = _undone(segments, run_id)
    before = _snapshots_before(catalog, undone)
    to_reingest = _segments_to_reingest(segments, base[SEGMENTS.name], before[SEGMENTS.name].snapshot_id, undone)
    found = {segment.path for segment in Archive(settings.archive, settings.s3).find(to_reingest)}
    if gone := sorted(to_reingest - found):
        raise Permanent(
            f"{len(gone)} segments of these runs are not in the archive any more, {gone[0]} for one; rolling back would lose "
            "them: restore them from a copy first"
        )
    run = MaintenanceRun(catalog, "rollback", base, now)
    for table in (table for table in EVERY_RUN_TABLE if table.name in before and table is not SEGMENTS):
        run.change(table, partial(replace_content, catalog, table, before[table.name]))
    undoes = {UNDOES: json.dumps([one.snapshot_id for one in undone])}
    run.publish(partial(replace_content, catalog, SEGMENTS, before[SEGMENTS.name]), undoes)
    result = RolledBack(run.run_id, [properties_of(one)[RUN_ID] for one in undone], len(to_reingest), sorted(before))
    log.info(
        "runs rolled back",
        rollback_run_id=result.run_id,
        undone=result.undone,
        segments_to_ingest_again=result.segments,
        tables=result.tables,
    )
    return result


def _undone(segments: IcebergTable, run_id: str) -> list[Snapshot]:
    """The run and all later ones, newest first."""
    runs = committed_runs(segments)
    place = next((place for place, run in enumerate(runs) if properties_of(run)[RUN_ID] == run_id), None)
    if place is None:
        known = ", ".join(properties_of(run)[RUN_ID] for run in runs[:5]) or "none"
        raise Permanent(f"run {run_id} is not committed, or {EXPIRED}; the newest committed runs are: {known}")
    return runs[: place + 1]


def _snapshots_before(catalog: Catalog, undone: Sequence[Snapshot]) -> dict[str, Snapshot]:
    """By table that these runs changed: the snapshot before the first of them."""
    written: dict[str, set[int]] = {SEGMENTS.name: {run.snapshot_id for run in undone}}
    for run in undone:
        for pinned in pins_in(run):
            written.setdefault(pinned.table.name, set()).add(pinned.snapshot_id)
    changed = (table for table in EVERY_RUN_TABLE if table.name in written)
    return {table.name: _snapshot_before(catalog.load_table(table.identifier), written[table.name]) for table in changed}


def _snapshot_before(table: IcebergTable, written: set[int]) -> Snapshot:
    """The snapshot of main before the oldest change by one of the `written` snapshots."""
    # Newest first. One of `written` may match several snapshots of main: its merge may have been repeated after a compaction.
    changes = [(s, snapshot_id) for s in ancestors(table) for snapshot_id in written if is_change_of(s, snapshot_id)]
    all_kept = {snapshot_id for _, snapshot_id in changes} == written
    parent = changes[-1][0].parent_snapshot_id if all_kept else None
    before = table.snapshot_by_id(parent) if parent is not None else None
    if before is None:
        raise Permanent(f"{'.'.join(table.name()[-2:])}: {EXPIRED}")
    return before


def _segments_to_reingest(segments: IcebergTable, now: int, before: int, undone: Sequence[Snapshot]) -> set[str]:
    """The segments that these runs ingested, and that were not in the lake before them."""
    mine = In(term="run_id", literals={properties_of(one)[RUN_ID] for one in undone})
    taken = {path for batch in Ledger(segments, now).scan(mine, "path") for path in batch["path"].to_pylist()}
    return taken - Ledger(segments, before).known(taken)
