"""Prunes the ledger with the archive: removes rows of segments whose files are gone after their retention. No Spark.

The file is removed before the row, so that no file in the archive is ever unknown. Before the first row is removed, the table
records the instant from which it is complete. From then on, segments with older seqs (a restored copy, a recorder that was
offline for long) are compared with the tables themselves, not with the ledger.
"""

from datetime import UTC, datetime, time, timedelta
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
from pipelines.maintenance.garbage_run import SAMPLE_SIZE, Removal

log = structlog.get_logger(__name__)


def prune_ledger(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove the rows of whole days past the archive's retention whose files are gone from the archive.

    Raises:
        ConcurrentPublish: other runs kept being published first; nothing is lost, run it again.
    """
    cut = datetime.combine((now - timedelta(days=settings.archive_retention_days)).astimezone(UTC).date(), time(), UTC)
    return until_not_overtaken()(lambda: _prune(catalog, Archive(settings.archive, settings.s3), cut, now, dry_run=dry_run))


def _prune(catalog: Catalog, archive: Archive, cut: datetime, now: datetime, *, dry_run: bool) -> Removal:
    loaded = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, loaded)
    paths = _paths_gone(Ledger(loaded), archive, cut)
    result = Removal(len(paths), paths[:SAMPLE_SIZE])
    if not paths or dry_run:
        return result
    _say_pruned(catalog, cut)
    run = MaintenanceRun(catalog, "prune", base, now)
    run.publish(partial(remove_rows, catalog, SEGMENTS, pa.table({"path": paths})))
    log.info("ledger pruned", run_id=run.run_id, before=cut.isoformat(), segments=len(paths))
    return result


def _paths_gone(ledger: Ledger, archive: Archive, cut: datetime) -> list[str]:
    """Paths of segments from before the cut that the archive does not have."""
    # Rows are found by the time in their path. A segment may also hold messages from after the cut: then it stays.
    undated = And(IsNull(term="began_at"), where(LessThan, "ingested_at", cut))  # the path has no time
    found: set[str] = set()
    for old in (where(LessThan, "began_at", cut), undated):
        for batch in ledger.scan(old, "path", "last_seq"):
            is_old = pc.less(pc.coalesce(batch["last_seq"], 0), first_seq_at(cut))
            paths = batch.filter(is_old)["path"].to_pylist()
            found |= set(paths) - archive.present(paths)
    return sorted(found)


@retry_conflicts
def _say_pruned(catalog: Catalog, cut: datetime) -> None:
    """Record the instant from which the ledger is complete. It never moves back: pruned rows stay gone if the retention grows."""
    loaded = catalog.load_table(SEGMENTS.identifier)
    before = pruned_before(loaded)
    if before is None or before < cut:
        with loaded.transaction() as change:
            change.set_properties({PRUNED_BEFORE: cut.isoformat()})
