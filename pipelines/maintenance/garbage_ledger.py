"""Prunes the ledger: removes the rows of segments that were removed from the archive after their retention. No Spark.

A segment's file is removed before its row, so the ledger knows every file in the archive that was ingested. Before rows are
removed, the ledger records the instant from which on it is complete. Segments with older seqs that appear later (restored from a
copy, or from a recorder that was offline for long) are then compared with the tables instead of the ledger.
"""

from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, IsNull, LessThan

from manifold.archive.store import Archive
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import where
from manifold.lake.commits import retry_conflicts
from manifold.settings import Settings
from pipelines.ingest.delete_rows import remove_rows
from pipelines.ingest.ledger import PRUNED_BEFORE, Ledger, pruned_before
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import main_snapshots
from pipelines.maintenance.expire_partitions import midnight_before
from pipelines.maintenance.garbage_run import SAMPLE_SIZE, Removal

log = structlog.get_logger(__name__)


def prune_ledger(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove the rows of segments whose days are past the archive's retention, and whose files the archive no longer has.

    `dry_run` only counts.

    Raises:
        Overtaken: other runs kept being published first; the ledger is unchanged, run it again.
    """
    cutoff = midnight_before(now, settings.archive_retention_days)
    archive = Archive(settings.archive, settings.s3)
    return until_not_overtaken()(lambda: _prune(catalog, archive, cutoff, now, dry_run=dry_run))


def _prune(catalog: Catalog, archive: Archive, cutoff: datetime, now: datetime, *, dry_run: bool) -> Removal:
    """Make one attempt at pruning, on the ledger as it is now."""
    loaded = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, loaded)
    paths = _paths_to_prune(Ledger(loaded), archive, cutoff)
    result = Removal(len(paths), paths[:SAMPLE_SIZE])
    if not paths or dry_run:
        return result
    _record_pruned_before(catalog, cutoff)
    run = MaintenanceRun(catalog, "prune", base, now)
    run.publish(partial(remove_rows, catalog, SEGMENTS, pa.table({"path": paths})))
    log.info("ledger pruned", run_id=run.run_id, removed_rows=len(paths), segments_before=cutoff.isoformat())
    return result


def _paths_to_prune(ledger: Ledger, archive: Archive, cutoff: datetime) -> list[str]:
    """Paths of segments that have only messages from before the cutoff, and that the archive does not have."""
    began_before = where(LessThan, "began_at", cutoff)
    # A path without a time has no `began_at`.
    without_time = And(IsNull(term="began_at"), where(LessThan, "ingested_at", cutoff))
    paths: set[str] = set()
    for condition in (began_before, without_time):
        for batch in ledger.scan(condition, "path", "last_seq"):
            last_seqs = pc.coalesce(batch["last_seq"], 0)  # a file that was refused as a whole has none
            ended_before = pc.less(last_seqs, first_seq_at(cutoff))
            old_paths = batch.filter(ended_before)["path"].to_pylist()
            paths |= set(old_paths) - archive.present(old_paths)
    return sorted(paths)


@retry_conflicts
def _record_pruned_before(catalog: Catalog, cutoff: datetime) -> None:
    """Record `cutoff` as the instant from which on the ledger is complete.

    The instant never moves back. If the retention grows later, the rows that were pruned before stay missing.
    """
    loaded = catalog.load_table(SEGMENTS.identifier)
    recorded = pruned_before(loaded)
    if recorded is None or recorded < cutoff:
        with loaded.transaction() as change:
            change.set_properties({PRUNED_BEFORE: cutoff.isoformat()})
