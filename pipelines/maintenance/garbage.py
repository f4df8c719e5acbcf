"""Removes unneeded data, in an order in which a crash loses nothing: `python -m pipelines garbage`."""

import json
import secrets
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from manifold.archive.flush import flush
from manifold.lake.catalog import ensure_tables
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.ingest.audit import AuditFailed
from pipelines.ingest.backlog import ingest_in_runs
from pipelines.ingest.lease import check_lease
from pipelines.ingest.maintenance_run import until_not_overtaken
from pipelines.ingest.publish import finish_committed_runs
from pipelines.ingest.run import Run
from pipelines.maintenance.ecq_garbage import drop_messages
from pipelines.maintenance.garbage_files import drop_refused_messages, drop_segments, expire_snapshots, remove_orphans
from pipelines.maintenance.garbage_history import drop_history
from pipelines.maintenance.garbage_ledger import prune_ledger
from pipelines.maintenance.garbage_old_campaigns import drop_campaigns
from pipelines.maintenance.garbage_run import Removal, collect, discover
from pipelines.maintenance.garbage_signals import drop_signals
from pipelines.populate.load import populate
from pipelines.populate.lock import populate_lock

RECORDER_NOT_FLUSHED = "a recorder cannot be asked to close its open segments, and a trigger in them may refer to old data"
INGEST_BLOCKED = (
    "new segments break a rule and cannot be published; a trigger in them may refer to old data, "
    "or an outcome in them may end an overdue entry"
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed; with `dry_run`, what it would remove."""

    dry_run: bool
    expired: Removal  # entries
    data: Removal  # payloads
    quarantine: Removal  # refused messages
    segments: Removal  # segments of the archive
    history: Removal  # entries that ended, with their outcomes
    ledger: Removal  # ledger rows of segments that the archive no longer has
    signals: Removal = field(default_factory=Removal)  # rows of signals
    messages: Removal = field(default_factory=Removal)  # messages of compacted queues
    campaigns: Removal = field(default_factory=Removal)  # rows of ended campaigns
    snapshots: dict[str, Removal] = field(default_factory=dict)  # by table
    orphans: dict[str, Removal] = field(default_factory=dict)  # files, by table

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def collect_garbage(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, run_id: str, now: datetime, dry_run: bool = False
) -> Collected:
    """Expire entries, then remove data, refused messages, snapshots, orphans and segments past their retentions.

    The caller takes `now` before the call, and everything recorded so far is ingested first. So a trigger that arrived while its
    data was within the retention has its rows in the lake before it is decided which data is unneeded. A dry run changes nothing
    and ingests nothing: its result is what would be removed if the archive had no new segments.

    Raises:
        Retryable: a service was unavailable, or other runs were published first; run it again.
    """
    ensure_tables(catalog)
    cutoff = now - timedelta(days=settings.retention_days)
    if dry_run:
        expired, data = discover(Run(spark, catalog, settings, run_id, now), cutoff=cutoff)
        messages = drop_messages(Run(spark, catalog, settings, run_id, now), dry_run=True)
    else:
        keep_data_because = None if flush(settings) else RECORDER_NOT_FLUSHED
        # Each call has new run ids: a run that is committed is not repeated, but a repeated call may find more to remove.
        unique_id = f"{run_id}_{secrets.token_hex(3)}"
        try:
            ingest_in_runs(Run(spark, catalog, settings, f"{unique_id}_ingest", now))
        except AuditFailed as exc:
            log.warning("entries, data and messages of compacted queues kept; new segments cannot be published", reason=str(exc))
            expired = data = messages = Removal(kept_because=INGEST_BLOCKED)
        else:
            populate(spark, catalog, settings, now=now)  # otherwise, the ingested entries would wait for the next populate
            expired, data = _expire_entries_and_remove_data(
                spark, catalog, settings, run_id=unique_id, now=now, keep_data_because=keep_data_because
            )
            messages = drop_messages(Run(spark, catalog, settings, f"{unique_id}_messages", now), dry_run=False)
            finish_committed_runs(catalog)
    check_lease(catalog)  # another job may need what is removed below
    result = Collected(  # most arguments are steps, which are done in the order in which they are written
        dry_run,
        expired,
        data,
        quarantine=drop_refused_messages(spark, settings, now=now, dry_run=dry_run),
        history=drop_history(catalog, settings, now=now, dry_run=dry_run),
        campaigns=drop_campaigns(catalog, settings, now=now, dry_run=dry_run),
        signals=drop_signals(catalog, settings, now=now, dry_run=dry_run),
        segments=drop_segments(catalog, settings, now=now, dry_run=dry_run),
        ledger=prune_ledger(catalog, settings, now=now, dry_run=dry_run),  # after the segments, whose rows it removes
        snapshots=expire_snapshots(spark, catalog, settings, now=now, dry_run=dry_run),
        orphans=remove_orphans(spark, catalog, settings, now=now, dry_run=dry_run),
        messages=messages,
    )
    _log_result(result)
    return result


def _log_result(result: Collected) -> None:
    """Write one log line with all removals."""
    log.info(
        "garbage listed, nothing removed" if result.dry_run else "garbage collected",
        overdue_entries=asdict(result.expired),
        unneeded_payloads=asdict(result.data),
        refused_messages=asdict(result.quarantine),
        ended_entries=asdict(result.history),
        rows_of_ended_campaigns=asdict(result.campaigns),
        rows_of_signals=asdict(result.signals),
        messages_of_compacted_queues=asdict(result.messages),
        archive_segments=asdict(result.segments),
        ledger_rows=asdict(result.ledger),
        snapshots_by_table={table: asdict(removal) for table, removal in result.snapshots.items()},
        orphan_files_by_table={table: asdict(removal) for table, removal in result.orphans.items()},
    )


def _expire_entries_and_remove_data(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, run_id: str, now: datetime, keep_data_because: str | None
) -> tuple[Removal, Removal]:
    """Expire overdue entries and remove unneeded data, in one run. Return both removals.

    The populate lock is held, because a populate that began earlier could queue entries that expire here.
    """
    cutoff = now - timedelta(days=settings.retention_days)
    run = Run(spark, catalog, settings, run_id, now)
    with connect(settings.redis) as redis, populate_lock(redis):
        return until_not_overtaken()(lambda: collect(run, cutoff=cutoff, keep_data_because=keep_data_because))
