"""Packs the ledger's small files between compactions: each micro-batch adds a file, and each discovery reads a day's files."""

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
from pipelines.ingest.branches import Overtaken
from pipelines.ingest.maintenance_run import MaintenanceRun
from pipelines.ingest.publish import main_snapshots

MAX_AGE = timedelta(days=2)  # files with older segments are left to compaction
SMALL_BYTES = 1 << 20  # files of at least this size are not packed
MIN_FILES = 8  # days with fewer small files are not packed

log = structlog.get_logger(__name__)


def pack_ledger(catalog: Catalog, *, now: datetime) -> int:
    """Pack the ledger's small files of each day; return their number.

    Nothing is packed, and 0 is returned, if no day has `MIN_FILES` small files, or if another run is published at the same time.
    """
    loaded = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, loaded)
    small_files_by_day: dict[str, list[FileScanTask]] = defaultdict(list)
    for task in loaded.scan(where(GreaterThanOrEqual, "began_at", now - MAX_AGE)).plan_files():
        if task.file.file_size_in_bytes < SMALL_BYTES:
            small_files_by_day[str(task.file.partition)].append(task)
    tasks: list[FileScanTask] = []
    for small_files in small_files_by_day.values():
        if len(small_files) >= MIN_FILES:
            tasks += small_files
    if not tasks:
        return 0
    run = MaintenanceRun(catalog, "pack", base, now)
    try:
        run.publish(partial(_pack, catalog, tasks))
    except Overtaken:  # the caller packs the files another time
        return 0
    log.info("small files of the ledger packed", run_id=run.run_id, packed_files=len(tasks))
    return len(tasks)


def _pack(catalog: Catalog, tasks: list[FileScanTask], branch: str, properties: dict[str, str]) -> None:
    """Replace the files of these tasks by new files with the same rows, in one snapshot of the branch."""
    loaded = catalog.load_table(SEGMENTS.identifier)
    rows = read_files(loaded, tasks)
    with loaded.transaction() as change, change.update_snapshot(properties, branch).overwrite() as files:
        for task in tasks:
            files.delete_data_file(task.file)
        for file in write_files(change.table_metadata, rows, loaded.io):
            files.append_data_file(file)
