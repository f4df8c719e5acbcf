"""Reads the newest rows of `quality_results`, without Spark, and at a cost that does not grow with the table."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, GreaterThanOrEqual
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import TimestamptzType
from pyiceberg.utils.datetime import datetime_to_micros

from manifold.contracts.tables import QUALITY, SEGMENTS, Table
from manifold.lake.catalog import where
from manifold.lake.data_files import read_files

COLUMNS = ("run_id", "suite", "rule", "severity", "outcome", "judged", "unexpected", "at")
RULES = 64  # per audit, with room to spare
# How far back to look, in turn, until there are enough rows; None is without limit.
LOOKBACKS = (timedelta(days=7), timedelta(days=90), None)
Row = dict[str, Any]


def version_of_results(catalog: Catalog) -> str:
    """Identify the state of table and ledger: it changes whenever a run is audited or published; empty without tables."""
    found = [_table(catalog, table) for table in (QUALITY, SEGMENTS)]
    return "-".join(str(table.metadata.current_snapshot_id) for table in found if table)


def newest_results(catalog: Catalog, judgements: int, *, now: datetime) -> list[Row]:
    """The rows, without samples, of the newest `judgements` audits, oldest first; a run audited twice counts twice.

    At most `judgements` files are read, and few more rows than these audits have. Empty if there is no table.
    """
    table = _table(catalog, QUALITY)
    if table is None:
        return []
    tasks = _newest_files(table, judgements, now)
    found = read_files(table, tasks, COLUMNS).to_pylist()
    newest = set(sorted({(row["at"], row["run_id"]) for row in found})[-judgements:])
    rows = [row for row in found if (row["at"], row["run_id"]) in newest]
    return sorted(rows, key=lambda row: (row["at"], row["run_id"], row["suite"], row["rule"]))


def _table(catalog: Catalog, table: Table) -> IcebergTable | None:
    try:
        return catalog.load_table(table.identifier)
    except NoSuchTableError:
        return None


def _newest_files(table: IcebergTable, judgements: int, now: datetime) -> list[FileScanTask]:
    """Enough files for that many audits: each file has at least one, and compaction merges those of a day."""
    tasks: list[FileScanTask] = []
    for back in LOOKBACKS:
        since = AlwaysTrue() if back is None else where(GreaterThanOrEqual, "at", now - back)
        tasks = sorted(table.scan(since).plan_files(), key=lambda task: _newest_at(table, task), reverse=True)
        taken = list(_until_enough(tasks, judgements))
        if len(taken) < len(tasks):
            return taken
    return tasks[:judgements]


def _until_enough(tasks: list[FileScanTask], judgements: int) -> Iterator[FileScanTask]:
    rows = 0
    for task in tasks[:judgements]:
        if rows >= judgements * RULES:
            return
        rows += task.file.record_count
        yield task


def _newest_at(table: IcebergTable, task: FileScanTask) -> int:
    """The highest `at` in a file, in microseconds since 1970; a file without this bound counts as new."""
    bound = (task.file.upper_bounds or {}).get(table.schema().find_field("at").field_id)
    if bound is None:
        return datetime_to_micros(datetime.max.replace(tzinfo=UTC))
    return int(from_bytes(TimestamptzType(), bound))
