"""Prunes the ledger with its archive: removes rows of segments whose files are gone after their retention. No Spark.

The file is removed first and the row later, so that no file of the archive is ever unknown. Before the first row is removed, the
table records the instant from which it is complete. Segments with older seqs (a copy brought back, a recorder that was away for
long) are from then on compared with the tables themselves, and not with the ledger.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, IsNull, LessThan
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable

from manifold.archive.store import Archive
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import where
from manifold.lake.commits import patiently
from manifold.lake.data_files import read_files, write_files
from manifold.settings import Settings
from pipelines.ingest.amending import Amendment, until_not_overtaken
from pipelines.ingest.ledger import PRUNED_BEFORE, pruned_before
from pipelines.ingest.publish import main_snapshots
from pipelines.maintenance.garbage_run import SAMPLE, Removal

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Rewrite:
    """A file of the ledger, and the rows of it that stay."""

    task: FileScanTask
    rest: pa.Table
    gone: list[str]


def prune_ledger(catalog: Catalog, settings: Settings, *, now: datetime, dry_run: bool) -> Removal:
    """Remove the rows of whole days that are past the archive's retention, as far as the archive has their files no more.

    Raises:
        ConcurrentPublish: other runs were published all the time; nothing is lost, do it again.
    """
    cut = datetime.combine((now - timedelta(days=settings.archive_retention_days)).astimezone(UTC).date(), time(), UTC)
    return until_not_overtaken()(lambda: _prune(catalog, Archive(settings.archive, settings.s3), cut, now, dry_run=dry_run))


def _prune(catalog: Catalog, archive: Archive, cut: datetime, now: datetime, *, dry_run: bool) -> Removal:
    loaded = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, loaded)
    dayless = And(IsNull(term="began_at"), where(LessThan, "ingested_at", cut))
    rewrites = [r for old in (where(LessThan, "began_at", cut), dayless) for r in _rewrites(loaded, archive, old, cut)]
    paths = [path for rewrite in rewrites for path in rewrite.gone]
    result = Removal(len(paths), sorted(paths)[:SAMPLE])
    if not paths or dry_run:
        return result
    _say_pruned(catalog, cut)
    run = Amendment(catalog, "prune", base, now)
    run.publish(partial(_replace, catalog, rewrites))
    log.info("the ledger is pruned", run_id=run.run_id, before=cut.isoformat(), segments=len(paths))
    return result


def _rewrites(loaded: IcebergTable, archive: Archive, old: BooleanExpression, cut: datetime) -> list[_Rewrite]:
    """The files of main with rows that can go, one at a time."""
    found = []
    for task in loaded.scan(old).plan_files():
        rows = read_files(loaded, [task])
        at = pc.coalesce(rows["began_at"], rows["ingested_at"])
        is_old = pc.and_(pc.less(at, pa.scalar(cut, at.type)), pc.less(pc.coalesce(rows["last_seq"], 0), first_seq_at(cut)))
        paths = rows.filter(is_old)["path"].to_pylist()
        gone = set(paths) - archive.present(paths)
        if gone:
            rest = rows.filter(pc.invert(pc.is_in(rows["path"], pa.array(gone, rows["path"].type))))
            found.append(_Rewrite(task, rest, sorted(gone)))
    return found


def _replace(catalog: Catalog, rewrites: list[_Rewrite], branch: str, properties: dict[str, str]) -> None:
    loaded = catalog.load_table(SEGMENTS.identifier)
    with loaded.transaction() as change, change.update_snapshot(properties, branch).overwrite() as files:
        for rewrite in rewrites:
            files.delete_data_file(rewrite.task.file)
            if rewrite.rest.num_rows:
                for file in write_files(change.table_metadata, rewrite.rest, loaded.io):
                    files.append_data_file(file)


@patiently
def _say_pruned(catalog: Catalog, cut: datetime) -> None:
    """It never goes back: what was pruned once is not there, whatever the retention is by now."""
    loaded = catalog.load_table(SEGMENTS.identifier)
    before = pruned_before(loaded)
    if before is None or before < cut:
        with loaded.transaction() as change:
            change.set_properties({PRUNED_BEFORE: cut.isoformat()})
