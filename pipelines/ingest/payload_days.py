"""The days of `sdv_fanout_data` that can hold a run's payloads, so that an audit does not read years of them.

The index says when a payload was stored by an earlier run, and the run's own rows say where it stores its payloads. A payload
that the index does not have may be on any day. If the index does not name as many payloads as there are, every payload may be on
any day: an index that has lost a name takes a stored payload for new.
"""

from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import DATA
from pipelines.ingest.branches import properties_of
from pipelines.ingest.day_spans import ONE_DAY, day_spans

DAY_OF = "first_seen_at"  # the column of `sdv_fanout_data`
MAX_SPANS = 50  # conditions that are asked of each file; a run that names more days has spans with others between them

AN_INSTANT = timedelta(microseconds=1)

Span = tuple[datetime, datetime]  # first and last instant

log = structlog.get_logger(__name__)


def is_index_whole(catalog: Catalog, payloads_at: int | None, names: int) -> bool:
    """Whether there are as many payloads as the index names, by the total of the payloads' snapshot.

    Where both have lost as many, this does not tell; `manifold lake check` compares each.

    Args:
        catalog: the lake's.
        payloads_at: the snapshot of `sdv_fanout_data`; None: main's.
        names: how many data ids the index has.
    """
    payloads = _rows(catalog.load_table(DATA.identifier), payloads_at)
    if payloads == names:
        return True
    log.warning(
        "payloads and their index differ; all payloads are looked through: manifold lake check", payloads=payloads, names=names
    )
    return False


def _rows(table: IcebergTable, snapshot_id: int | None) -> int | None:
    """How many rows a snapshot has; None where its totals do not say it."""
    snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    totals = properties_of(snapshot) if snapshot is not None else {}
    if "total-records" not in totals or int(totals.get("total-equality-deletes", "0")):
        return None
    return int(totals["total-records"]) - int(totals.get("total-position-deletes", "0"))


def spans_of(named: Collection[date | None], stored: Collection[date | None]) -> list[Span] | None:
    """Spans of whole days, in order, at most `MAX_SPANS`; None: a payload may lie anywhere.

    Args:
        named: the days of `stored_at` in the index, of all data ids that the run has seen; None where the index does not say it.
        stored: the days of the payloads that the run adds; None is of no day, and that is looked at anyway.
    """
    if None in named:
        return None
    days = sorted({day for day in (*named, *stored) if day is not None})
    gaps = sorted((day - before for before, day in pairwise(days)), reverse=True)
    apart = gaps[MAX_SPANS - 1] if len(gaps) >= MAX_SPANS else ONE_DAY  # days that are farther apart have spans of their own
    return [(_began(first), _began(last + ONE_DAY) - AN_INSTANT) for first, last in day_spans(days, apart)]


def _began(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
