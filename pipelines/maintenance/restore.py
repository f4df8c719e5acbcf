"""Rebuilds the lake from the archive: one run empties every table, then the whole archive is ingested, oldest segments first."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from manifold.archive.flush import flush
from manifold.archive.store import Archive
from manifold.contracts.errors import OutcomeUnknown, Permanent
from manifold.contracts.tables import EVERY_RUN_TABLE, SEGMENTS, Table
from manifold.lake.catalog import ensure_tables, run_tables_of
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.catalog import await_catalog
from pipelines.ingest.backlog import ingest_in_runs
from pipelines.ingest.branches import EVERYTHING, UNDOES
from pipelines.ingest.lease import rewriting
from pipelines.ingest.ledger import ledger_of, missing_segments, pruned_before
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import current_snapshots, finish_committed_runs
from pipelines.ingest.restore_snapshot import replace_content
from pipelines.ingest.run import Run
from pipelines.lineage import emits_lineage
from pipelines.populate.lock import populate_lock
from pipelines.spark.session import GREAT_EXPECTATIONS, session

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    run_id: str  # of the run that emptied the tables; it can be rolled back while the earlier snapshots are kept
    segments: int  # number of ingested segments
    runs: int  # number of runs that ingested them

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


@emits_lineage("restore", reads=["archive"])
def restore_lake(settings: Settings, *, without_history: bool = False) -> Restored:
    """Call `restore` for these settings, after asking the recorders to close their open segments."""
    flush(settings)  # the segments of a recorder that cannot be asked are ingested later, once it has closed them
    catalog = await_catalog(settings)
    with session(settings, "restore", meanwhile=GREAT_EXPECTATIONS) as spark:
        return restore(spark, catalog, settings, now=datetime.now(UTC), without_history=without_history)


def restore(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, without_history: bool = False
) -> Restored:
    """Empty every table that runs write, and ingest the whole archive, oldest segments first.

    The populate lock is held, so that no populate fills the queues from an incomplete lake. With `without_history`, segments that
    the lake has and the archive lacks are given up.

    Raises:
        Permanent: the lake has segments that the archive lacks, and `without_history` is false.
        AuditFailed: the archive breaks a rule. Repair the cause; then `manifold ingest` continues.
        LeaseHeld: another job is rewriting tables. Nothing was changed.
    """
    if SEGMENTS in _unreadable_tables(catalog):  # the lease is a property of this table, so the table must be readable first
        _recreate_unreadable(catalog, settings, without_history=without_history)
    with rewriting(catalog, "restore"), connect(settings.redis) as redis, populate_lock(redis) as lock:
        _recreate_unreadable(catalog, settings, without_history=without_history)
        run_id = until_not_overtaken()(lambda: empty_tables(catalog, now))
        ingest_run = Run(spark, catalog, settings, f"{run_id}_again", now)
        ingest = ingest_in_runs(ingest_run, after_each=lock.require_held)
    result = Restored(run_id, ingest.ingested.segments, len(ingest.runs))
    log.info("lake restored from the archive", emptying_run_id=run_id, segments=result.segments, ingest_runs=result.runs)
    return result


def empty_tables(catalog: Catalog, now: datetime) -> str:
    """Publish a run that empties every table that runs write; return its id.

    Raises:
        Overtaken: another run was published since this run began; the tables are unchanged.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    try:
        finish_committed_runs(catalog, segments)
    except OutcomeUnknown as exc:  # must not stop the restore, which ingests the rows of that run from the archive
        log.warning("committed run lost its snapshots; restoring from the archive", reason=str(exc))
    base = current_snapshots(catalog, segments)
    run = MaintenanceRun(catalog, "restore", base, now)
    for table in run_tables_of(catalog):
        if table is not SEGMENTS:
            run.change(table, partial(replace_content, catalog, table, None))  # None: no rows
    # The run undoes all earlier runs: none of them counts as committed any more.
    run.publish(partial(replace_content, catalog, SEGMENTS, None), {UNDOES: EVERYTHING})
    return run.run_id


def _recreate_unreadable(catalog: Catalog, settings: Settings, *, without_history: bool) -> None:
    """Drop the tables that cannot be read, and create them again without rows. Create missing tables, too.

    Raises:
        Permanent: the archive lacks segments that the lake has, or it is unknown whether it does. With `without_history`, this is
            not checked.
    """
    unreadable = _unreadable_tables(catalog)
    if not without_history:
        _require_complete_archive(catalog, settings, is_ledger_readable=SEGMENTS not in unreadable)
    _drop_tables(catalog, unreadable)
    ensure_tables(catalog)


def _unreadable_tables(catalog: Catalog) -> list[Table]:
    """The tables whose metadata cannot be read. A missing ledger counts as unreadable; other missing tables do not."""
    unreadable = []
    for table in EVERY_RUN_TABLE:
        try:
            catalog.load_table(table.identifier)
        except NoSuchTableError:
            if table is SEGMENTS:
                unreadable.append(table)
        except (OSError, ValueError) as exc:
            log.warning("table unreadable", table=table.name, reason=str(exc))
            unreadable.append(table)
    return unreadable


def _drop_tables(catalog: Catalog, unreadable: Sequence[Table]) -> None:
    """Drop the unreadable tables from the catalog, so that they can be created again.

    If the ledger is among them, all tables are dropped, because with an empty ledger, ingest would add all rows a second time.
    The ledger is dropped last: while it is unreadable, no other process can ingest.
    """
    tables = EVERY_RUN_TABLE if SEGMENTS in unreadable else unreadable
    for table in sorted(tables, key=lambda table: table is SEGMENTS):  # the ledger last
        with suppress(NoSuchTableError):
            catalog.drop_table(table.identifier)
            log.warning("table dropped for re-creation", table=table.name)


def _require_complete_archive(catalog: Catalog, settings: Settings, *, is_ledger_readable: bool) -> None:
    """Verify that the archive has every segment from which the lake was made.

    Raises:
        Permanent: the archive lacks segments, or the ledger is unreadable or pruned, so that it cannot tell.
    """
    remedy = "restore the archive from a copy, or give up that history with --without-history"
    if not is_ledger_readable:
        raise Permanent(f"ingested_segments cannot be read: it is unknown whether the archive is complete; {remedy}")
    count = 0
    first_path = ""
    last_path = ""
    for path in missing_segments(ledger_of(catalog), Archive(settings.archive, settings.s3)):
        if count == 0 or path < first_path:
            first_path = path
        last_path = max(last_path, path)
        count += 1
    if count:
        raise Permanent(
            f"{count} segments that are in the lake are not in the archive, from {first_path} to {last_path}; {remedy}"
        )
    pruned = pruned_before(catalog.load_table(SEGMENTS.identifier))
    if pruned is not None:
        raise Permanent(
            f"the lake has what began before {pruned:%Y-%m-%d}, and the archive does not keep it any more "
            f"(MANIFOLD_ARCHIVE_RETENTION_DAYS={settings.archive_retention_days:g}); {remedy}"
        )
