"""Days of `sdv_fanout_data` that can hold a run's payloads, so that an audit does not scan years of them.

The index says on which day an earlier run stored a payload, and the run's own rows say where it stores its payloads. If the index
names more or fewer payloads than there are, every payload may be on any day: one that the index has lost looks new.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import DATA
from pipelines.ingest.branches import properties_of
from pipelines.ingest.day_spans import ONE_DAY, day_spans

DAY_OF = "first_seen_at"  # the day column of `sdv_fanout_data`
MAX_SPANS = 50  # conditions evaluated for each file; with more days, spans also cover days between them

AN_INSTANT = timedelta(microseconds=1)

Span = tuple[datetime, datetime]  # first and last instant

log = structlog.get_logger(__name__)


def is_index_whole(catalog: Catalog, payloads_at: int | None, names: int) -> bool:
    """Whether the index names as many payloads as there are, by the row count of the payloads' snapshot.

    Equal losses in both go unnoticed; `manifold lake check` compares row by row.

    Args:
        catalog: the lake's catalog.
        payloads_at: the snapshot of `sdv_fanout_data`; None: main's.
        names: number of data ids in the index.
    """
    payloads = _rows(catalog.load_table(DATA.identifier), payloads_at)
    if payloads == names:
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


def spans_of(days: Iterable[date]) -> list[Span]:
    """Spans of whole days that cover `days`, in order, at most `MAX_SPANS`."""
    ordered = sorted(set(days))
    gaps = sorted((day - before for before, day in pairwise(ordered)), reverse=True)
    apart = gaps[MAX_SPANS - 1] if len(gaps) >= MAX_SPANS else ONE_DAY  # a wider gap starts a new span
    return [(_began(first), _began(last + ONE_DAY) - AN_INSTANT) for first, last in day_spans(ordered, apart)]


def _began(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
