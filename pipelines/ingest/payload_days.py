"""Days of `sdv_fanout_data` that can hold a run's payloads, so that an audit does not scan years of them.

The index says on which day an earlier run stored a payload, and the run's own rows say where it stores its payloads. A payload
missing from the index may be on any day. If payloads and index differ in row count, every payload may be on any day: an index
that has lost a row makes a stored payload look new.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import DATA, META
from pipelines.ingest.branches import properties_of
from pipelines.ingest.day_spans import ONE_DAY, day_spans

DAY_OF = "first_seen_at"  # the day column of `sdv_fanout_data`
MAX_SPANS = 50  # conditions evaluated for each file; with more days, spans also cover days between them

AN_INSTANT = timedelta(microseconds=1)

Span = tuple[datetime, datetime]  # first and last instant

log = structlog.get_logger(__name__)


def is_index_whole(catalog: Catalog, versions: Mapping[str, int]) -> bool:
    """Whether payloads and index have equally many rows: each payload has one in both. Only snapshot totals are read.

    Equal losses in both go unnoticed; `manifold lake check` compares row by row.

    Args:
        catalog: the lake's catalog.
        versions: the snapshots to compare, by table name; main's for tables that are missing here.
    """
    payloads, names = (_rows(catalog.load_table(table.identifier), versions.get(table.name)) for table in (DATA, META))
    if payloads is not None and payloads == names:
        return True
    log.warning(
        "payload and index row counts differ; scanning all payloads", payloads=payloads, names=names, remedy="manifold lake check"
    )
    return False


def _rows(table: IcebergTable, snapshot_id: int | None) -> int | None:
    """The number of rows in a snapshot; None if its totals do not tell."""
    snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    totals = properties_of(snapshot) if snapshot is not None else {}
    if "total-records" not in totals or int(totals.get("total-equality-deletes", "0")):
        return None
    return int(totals["total-records"]) - int(totals.get("total-position-deletes", "0"))


def spans_of(named: Collection[date | None], stored: Collection[date | None]) -> list[Span] | None:
    """Spans of whole days, in order, at most `MAX_SPANS`; None if a payload may be on any day.

    Args:
        named: days of `stored_at` in the index, for all data ids that the run has seen; None where the index has no day.
        stored: days of the payloads that the run adds; None for those without a day, which are scanned anyway.
    """
    if None in named:
        return None
    days = sorted({day for day in (*named, *stored) if day is not None})
    gaps = sorted((day - before for before, day in pairwise(days)), reverse=True)
    apart = gaps[MAX_SPANS - 1] if len(gaps) >= MAX_SPANS else ONE_DAY  # a wider gap starts a new span
    return [(_began(first), _began(last + ONE_DAY) - AN_INSTANT) for first, last in day_spans(days, apart)]


def _began(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
