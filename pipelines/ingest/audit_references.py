"""Tables in which the rules of an audit look up values, with only the rows to which the audited run can refer.

Of `sdv_fanout_data`, an audit scans only the days that can hold the payloads of the run's data ids. The index (`sdv_fanout_meta`)
records on which day an earlier run stored a payload, and the run's own rows have the days of the payloads that the run stores. If
index and payload table differ in their number of payloads, the audit must scan all days: a payload without an index entry may be
on any day.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import reduce
from itertools import pairwise

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.tables import CAMPAIGNS, DATA, ECQ_PAYLOAD, ECQ_SEQNO, IDS, META, SEGMENTS, XRAY_RAW, Table
from pipelines.ingest.branches import PinnedSnapshot, properties_of
from pipelines.ingest.day_spans import ONE_DAY, day_spans
from pipelines.ingest.run import Run

# Tables in which rules look up values, by name.
REFERENCES = {table.name: table for table in (DATA, META, IDS, ECQ_PAYLOAD, ECQ_SEQNO, CAMPAIGNS, SEGMENTS, XRAY_RAW)}
PAYLOAD_DAY = "first_seen_at"  # the day column of `sdv_fanout_data`
MAX_SPANS = 50  # each span is a condition that is evaluated for each file; if there are more, nearby spans are merged

MICROSECOND = timedelta(microseconds=1)  # the resolution of instants

Span = tuple[datetime, datetime]  # first and last instant, inclusive

log = structlog.get_logger(__name__)


class ReferenceTables(Mapping[str, DataFrame]):
    """Tables in which rules look up values, by name. Each frame is built on first use.

    A frame shows the table as it will be once the run is committed. Only rows to which the run can refer are included: in the
    ledger, those of the time range in which the run's segments began; in the payloads, those of the days that can hold the run's
    data ids; in the signals, those of the run's time range. Rows of the ledger and of the payloads may lack the instant, and are
    then included as well.
    """

    def __init__(self, run: Run, written: Sequence[PinnedSnapshot], added_rows: Mapping[str, DataFrame]) -> None:
        self._run = run
        self._added = added_rows
        self._snapshot_ids = {pinned.table.name: pinned.snapshot_id for pinned in written}
        self._frames: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._frames:
            self._frames[name] = self._referable_rows(name, self._read_table(REFERENCES[name]))
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(REFERENCES)

    def __len__(self) -> int:
        return len(REFERENCES)

    def _read_table(self, table: Table) -> DataFrame:
        """All rows of the table at the run's snapshot or, if the run does not write the table, at main."""
        main_snapshot_id = self._run.catalog.load_table(table.identifier).metadata.current_snapshot_id
        snapshot_id = self._snapshot_ids.get(table.name, main_snapshot_id)
        reader = self._run.spark.read.option("versionAsOf", str(snapshot_id))
        return reader.table(f"{self._run.settings.catalog_name}.{table.identifier}")

    def _referable_rows(self, name: str, rows: DataFrame) -> DataFrame:
        """Those of `rows`, all rows of the table `name`, to which the run can refer."""
        if name == SEGMENTS.name:
            first, last = _bounds(self._added[name], "began_at")
            is_dayless = sf.col("began_at").isNull()
            if first is None:  # no path of the run's segments contains an instant
                return rows.where(is_dayless)
            return rows.where(is_dayless | sf.col("began_at").between(sf.lit(first), sf.lit(last)))
        if name == DATA.name and self._is_index_complete():
            return rows.where(self._has_possible_payload_day())
        if name == XRAY_RAW.name and name in self._added:
            first, last = _bounds(self._added[name], "captured_at")
            # With literal bounds, Iceberg can prune files. Rows without `captured_at` are left out: it is part of the key that is
            # looked up, and a key with a null equals no other.
            return rows.where(sf.col("captured_at").between(sf.lit(first), sf.lit(last)))
        return rows  # no bound is known

    def _is_index_complete(self) -> bool:
        """Whether the index has an entry for each payload, as far as the counts tell."""
        data_ids = self._read_table(META).select("data_id").distinct().count()
        return is_index_complete(self._run.catalog, self._snapshot_ids.get(DATA.name), data_ids)

    def _has_possible_payload_day(self) -> Column:
        """Condition: the row's day can hold a payload of the run's data ids, or the row has no day."""
        day_columns = {META.name: "stored_at", DATA.name: PAYLOAD_DAY}
        instants = [self._added[table].select(column) for table, column in day_columns.items() if table in self._added]
        condition = sf.col(PAYLOAD_DAY).isNull()
        for first, last in spans_of(_distinct_days(instants)):
            condition = condition | sf.col(PAYLOAD_DAY).between(sf.lit(first), sf.lit(last))
        return condition


def _bounds(rows: DataFrame, column: str) -> tuple[object, object]:
    """The minimum and maximum of a column; (None, None) if it has no values."""
    first, last = rows.agg(sf.min(column), sf.max(column)).collect()[0]
    return first, last


def _distinct_days(instants: Sequence[DataFrame]) -> list[date]:
    """The distinct days of the instants in these frames, which have one column each; nulls are left out."""
    if not instants:
        return []
    days = reduce(DataFrame.union, instants).toDF("at").select(sf.to_date("at").alias("day")).distinct().collect()
    return [row["day"] for row in days if row["day"] is not None]


def is_index_complete(catalog: Catalog, payload_snapshot_id: int | None, data_ids: int) -> bool:
    """Whether the index has as many data ids as the payload table has rows; False if that number of rows is not known.

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
        "payload table and index may differ in their number of payloads; the audit scans all days of the payload table",
        payload_table=DATA.name,
        index_table=META.name,
        stored_payloads=payloads,
        indexed_payloads=data_ids,
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
    steps = sorted((day - previous for previous, day in pairwise(ordered)), reverse=True)  # the longest first
    # Each step longer than `max_step` begins another span, so fewer than MAX_SPANS steps may be longer.
    max_step = steps[MAX_SPANS - 1] if len(steps) >= MAX_SPANS else ONE_DAY
    return [(_midnight(first), _midnight(last + ONE_DAY) - MICROSECOND) for first, last in day_spans(ordered, max_step)]


def _midnight(day: date) -> datetime:
    """The first instant of the day, in UTC."""
    return datetime.combine(day, time(), UTC)
