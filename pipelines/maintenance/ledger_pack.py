"""Packs the ledger's small files between compactions: each micro-batch adds one, and each discovery reads a day of them."""

from collections import defaultdict
from datetime import datetime, timedelta
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import GreaterThanOrEqual
from pyiceberg.table import FileScanTask

from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import where
from manifold.lake.data_files import read_files, write_files
from pipelines.ingest.branches import ConcurrentPublish
from pipelines.ingest.maintenance_run import MaintenanceRun
from pipelines.ingest.publish import main_snapshots

DAYS = timedelta(days=2)  # older files are left to compaction
SMALL_BYTES, MIN_FILES = 1 << 20, 8

log = structlog.get_logger(__name__)


def pack_ledger(catalog: Catalog, *, now: datetime) -> int:
    """Pack the small files of each day; return how many, or 0 if there are few or another run was published in the meantime."""
    loaded = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, loaded)
    by_day: dict[object, list[FileScanTask]] = defaultdict(list)
    for task in loaded.scan(where(GreaterThanOrEqual, "began_at", now - DAYS)).plan_files():
        if task.file.file_size_in_bytes < SMALL_BYTES:
            by_day[str(task.file.partition)].append(task)
    tasks = [task for some in by_day.values() if len(some) >= MIN_FILES for task in some]
    if not tasks:
        return 0
    run = MaintenanceRun(catalog, "pack", base, now)
    try:
        run.publish(partial(_pack, catalog, tasks))
    except ConcurrentPublish:
        return 0
    log.info("small ledger files compacted", run_id=run.run_id, files=len(tasks))
    return len(tasks)


def _pack(catalog: Catalog, tasks: list[FileScanTask], branch: str, properties: dict[str, str]) -> None:
    loaded = catalog.load_table(SEGMENTS.identifier)
    rows = read_files(loaded, tasks)
    with loaded.transaction() as change, change.update_snapshot(properties, branch).overwrite() as files:
        for task in tasks:
            files.delete_data_file(task.file)
        for file in write_files(change.table_metadata, rows, loaded.io):
            files.append_data_file(file)
