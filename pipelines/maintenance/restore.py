"""Rebuilds the lake from the archive: empties every table in one run, then ingests the archive, oldest first."""

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
from pipelines.ingest.branches import EVERYTHING, UNDOES
from pipelines.ingest.chunks import ingest_in_chunks
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

    run_id: str  # of the run that emptied the tables, which can be rolled back while its history is kept
    segments: int
    runs: int

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


@emits_lineage("restore", reads=["archive"])
def restore_lake(settings: Settings, *, without_history: bool = False) -> Restored:
    """`restore` for these settings, with everything that the recorder has written until now."""
    flush(settings)
    catalog = await_catalog(settings)
    with session(settings, "restore", meanwhile=GREAT_EXPECTATIONS) as spark:
        return restore(spark, catalog, settings, now=datetime.now(UTC), without_history=without_history)


def restore(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, without_history: bool = False
) -> Restored:
    """Empty every table that runs write, and ingest the whole archive, oldest first. Nobody fills the queues meanwhile.

    Raises:
        Permanent: the lake has segments that the archive lacks; with `without_history`, they are given up instead.
        AuditFailed: the archive breaks a rule; repair the cause, then `manifold ingest` continues.
        LeaseHeld: another job is rewriting tables; nothing happened.
    """
    if SEGMENTS in _unreadable(catalog):  # the lease is a property of that table
        _recreate_unreadable(catalog, settings, without_history=without_history)
    with rewriting(catalog, "restore"), connect(settings.redis) as redis, populate_lock(redis) as lock:
        _recreate_unreadable(catalog, settings, without_history=without_history)
        run_id = until_not_overtaken()(lambda: empty(catalog, now))
        again = f"{run_id}_again"
        done = ingest_in_chunks(Run(spark, catalog, settings, again, now), after_each=lock.check)
    result = Restored(run_id, done.ingested.segments, len(done.runs))
    log.info("lake restored from the archive", emptying_run_id=run_id, segments=result.segments, ingest_runs=result.runs)
    return result


def empty(catalog: Catalog, now: datetime) -> str:
    """Publish a run that empties every table that runs write; return its id.

    Raises:
        ConcurrentPublish: another run was published in the meantime; nothing happened.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    try:
        finish_committed_runs(catalog, segments)
    except OutcomeUnknown as exc:
        log.warning("committed run lost its snapshots; restoring from the archive", reason=str(exc))
    base = current_snapshots(catalog, segments)
    run = MaintenanceRun(catalog, "restore", base, now)
    for table in run_tables_of(catalog):
        if table is not SEGMENTS:
            run.change(table, partial(replace_content, catalog, table, None))
    run.publish(partial(replace_content, catalog, SEGMENTS, None), {UNDOES: EVERYTHING})
    return run.run_id


def _recreate_unreadable(catalog: Catalog, settings: Settings, *, without_history: bool) -> None:
    """Recreate the tables that cannot be read, empty, if the archive has everything that the lake had."""
    lost = _unreadable(catalog)
    if not without_history:
        _require_all(catalog, settings, readable=SEGMENTS not in lost)
    _drop(catalog, lost)
    ensure_tables(catalog)


def _unreadable(catalog: Catalog) -> list[Table]:
    """The tables whose metadata cannot be read, and the ledger if it is missing."""
    lost = []
    for table in EVERY_RUN_TABLE:
        try:
            catalog.load_table(table.identifier)
        except NoSuchTableError:
            if table is SEGMENTS:
                lost.append(table)
        except (OSError, ValueError) as exc:
            log.warning("table unreadable", table=table.name, reason=str(exc))
            lost.append(table)
    return lost


def _drop(catalog: Catalog, lost: Sequence[Table]) -> None:
    """Drop these tables from the catalog, so that they can be recreated.

    If the ledger is lost, all tables are dropped, the ledger last: an empty ledger beside full tables would double all their
    rows, and an unreadable one stops other processes until this is done.
    """
    for table in sorted(EVERY_RUN_TABLE if SEGMENTS in lost else lost, key=lambda table: table is SEGMENTS):
        with suppress(NoSuchTableError):
            catalog.drop_table(table.identifier)
            log.warning("table dropped for re-creation", table=table.name)


def _require_all(catalog: Catalog, settings: Settings, *, readable: bool) -> None:
    remedy = "restore the archive from a copy, or give up that history with --without-history"
    if not readable:
        raise Permanent(f"ingested_segments cannot be read: it is unknown whether the archive is complete; {remedy}")
    count, first, last = 0, "", ""
    for path in missing_segments(ledger_of(catalog), Archive(settings.archive, settings.s3)):
        count, first, last = count + 1, min(first or path, path), max(last, path)
    if count:
        raise Permanent(f"{count} segments that are in the lake are not in the archive, from {first} to {last}; {remedy}")
    pruned = pruned_before(catalog.load_table(SEGMENTS.identifier))
    if pruned is not None:
        raise Permanent(
            f"the lake has what began before {pruned:%Y-%m-%d}, and the archive does not keep it any more "
            f"(MANIFOLD_ARCHIVE_RETENTION_DAYS={settings.archive_retention_days:g}); {remedy}"
        )
