"""Determines the days of `sdv_fanout_data` that can hold the payloads of a run's data ids, so that an audit scans only these.

The index (`sdv_fanout_meta`) records on which day an earlier run stored a payload, and the run's own rows have the days of the
payloads that the run stores. If index and payload table differ in their number of payloads, the audit must scan all days: a
payload without an index entry may be on any day.
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
MAX_SPANS = 50  # each span is a condition that is evaluated for each file; if there are more, nearby spans are merged

MICROSECOND = timedelta(microseconds=1)  # the resolution of instants

Span = tuple[datetime, datetime]  # first and last instant, inclusive

log = structlog.get_logger(__name__)


def is_index_complete(catalog: Catalog, payload_snapshot_id: int | None, data_ids: int) -> bool:
    """Whether the index has as many data ids as the payload table has rows.

    Only the counts are compared, so the loss of equally many rows in both tables goes unnoticed. `manifold lake check` compares
    the rows.

    Args:
        catalog: the lake's catalog.
        payload_snapshot_id: the snapshot of `sdv_fanout_data` to count; None: the current snapshot of main.
        data_ids: the number of data ids in the index.
    """
    payloads = _row_count(catalog.load_table(DATA.identifier), payload_snapshot_id)
    if payloads == data_ids:
        return True
    log.warning(
        "payload and index row counts differ; scanning all payloads",
        payloads=payloads,
        names=data_ids,
        remedy="manifold lake check",
    )
    return False


def _row_count(table: IcebergTable, snapshot_id: int | None) -> int | None:
    """The number of rows in a snapshot, from the totals in its summary; None if they are missing or not exact."""
    snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    totals = properties_of(snapshot) if snapshot is not None else {}
    if "total-records" not in totals or int(totals.get("total-equality-deletes", "0")):
        return None
    return int(totals["total-records"]) - int(totals.get("total-position-deletes", "0"))


def spans_of(days: Iterable[date]) -> list[Span]:
    """At most `MAX_SPANS` spans of whole days, in order, that together cover `days`."""
    ordered = sorted(set(days))
    steps = sorted((day - previous for previous, day in pairwise(ordered)), reverse=True)
    # Each step longer than `max_step` starts another span. At most MAX_SPANS - 1 steps are longer than the step at this index.
    max_step = steps[MAX_SPANS - 1] if len(steps) >= MAX_SPANS else ONE_DAY
    return [(_midnight(first), _midnight(last + ONE_DAY) - MICROSECOND) for first, last in day_spans(ordered, max_step)]


def _midnight(day: date) -> datetime:
    """The first instant of the day, in UTC."""
    return datetime.combine(day, time(), UTC)
