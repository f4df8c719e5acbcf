"""Reads the newest rows of `quality_results` without Spark, at a cost that does not grow with the table."""

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
MAX_RULES_PER_AUDIT = 64  # each rule of an audit is a row
# How far back to look for enough rows: first 7 days, then 90 days, then without limit (None).
LOOKBACKS = (timedelta(days=7), timedelta(days=90), None)
Row = dict[str, Any]


def version_of_results(catalog: Catalog) -> str:
    """A version that changes whenever a run is audited or published.

    It joins the snapshot ids of `quality_results` and of `ingested_segments`, to which every publication commits. Empty if the
    tables do not exist.
    """
    tables = [_load(catalog, table) for table in (QUALITY, SEGMENTS)]
    return "-".join(str(table.metadata.current_snapshot_id) for table in tables if table)


def newest_results(catalog: Catalog, max_audits: int, *, now: datetime) -> list[Row]:
    """The rows, without samples, of the newest `max_audits` audits, oldest audit first.

    A run that was audited twice counts as two audits. At most `max_audits` files are read; they hold few rows of other audits.
    Empty if the table does not exist.
    """
    table = _load(catalog, QUALITY)
    if table is None:
        return []
    tasks = _newest_files(table, max_audits, now)
    candidates = read_files(table, tasks, COLUMNS).to_pylist()
    audits = sorted({(row["at"], row["run_id"]) for row in candidates})
    newest_audits = set(audits[-max_audits:])
    rows = [row for row in candidates if (row["at"], row["run_id"]) in newest_audits]
    return sorted(rows, key=lambda row: (row["at"], row["run_id"], row["suite"], row["rule"]))


def _load(catalog: Catalog, table: Table) -> IcebergTable | None:
    """Load the table; None if it does not exist."""
    try:
        return catalog.load_table(table.identifier)
    except NoSuchTableError:
        return None


def _newest_files(table: IcebergTable, max_audits: int, now: datetime) -> list[FileScanTask]:
    """The newest files, enough for this many audits. A file has the rows of one audit, or, once compacted, of a day's audits.

    If all files within a lookback are needed, older files may be needed as well, and the next, longer lookback is tried.
    """
    needed: list[FileScanTask] = []
    for lookback in LOOKBACKS:
        row_filter = AlwaysTrue() if lookback is None else where(GreaterThanOrEqual, "at", now - lookback)
        tasks = sorted(table.scan(row_filter).plan_files(), key=lambda task: _newest_instant(table, task), reverse=True)
        needed = list(_take_enough(tasks, max_audits))
        if len(needed) < len(tasks):
            break
    return needed


def _take_enough(tasks: list[FileScanTask], max_audits: int) -> Iterator[FileScanTask]:
    """Yield files until they have the rows of this many audits, and at most this many files."""
    rows = 0
    for task in tasks[:max_audits]:
        if rows >= max_audits * MAX_RULES_PER_AUDIT:
            return
        rows += task.file.record_count
        yield task


def _newest_instant(table: IcebergTable, task: FileScanTask) -> int:
    """The highest `at` in a file, in microseconds since 1970. A file without this statistic counts as the newest."""
    upper_bounds = task.file.upper_bounds or {}
    bound = upper_bounds.get(table.schema().find_field("at").field_id)
    if bound is None:
        return datetime_to_micros(datetime.max.replace(tzinfo=UTC))
    return int(from_bytes(TimestamptzType(), bound))
