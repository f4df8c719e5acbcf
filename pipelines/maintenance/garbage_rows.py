"""Finds overdue entries and unneeded data in Spark. A test compares it with the same rules over plain rows.

All entries accepted since the cut-off are compared with the outcomes; of older entries, only those of days not known to be over
(`garbage_days`), so that the cost of a collection does not grow with the years.
"""

from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from manifold.contracts.tables import IDS, META, OUTCOMES, SEGMENTS, Table
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.publish import main_snapshots
from pipelines.ingest.transforms import folded
from pipelines.maintenance.garbage_campaigns import campaigns_with_data, open_campaigns
from pipelines.maintenance.garbage_days import days_over, remember_days
from pipelines.maintenance.garbage_plan import days_to_read
from pipelines.populate.pending import KEYS, pending
from pipelines.spark.parallelism import parallelism

ROWS_PER_PARTITION = 400_000
MAX_DAYS = 60  # old days that are read one by one; above this, all are read
ONE_DAY = timedelta(days=1)


class Rows:
    """Overdue entries and unneeded data, in main as of construction."""

    def __init__(self, attempt: Attempt, *, cut: datetime) -> None:
        self._run, self._cut = attempt, cut.astimezone(UTC)
        self.base = main_snapshots(attempt.catalog, attempt.catalog.load_table(SEGMENTS.identifier))
        self._entries = self._counts(IDS)
        self._days = days_to_read(self._entries, days_over(attempt.catalog, self.base), before=self._cut.date())
        self._parts = max(parallelism(attempt.spark), -(-sum(self._entries.values()) // ROWS_PER_PARTITION))

    def overdue(self) -> DataFrame:
        """(vin, seq, data_id, ts) of entries accepted before the cut-off that have no outcome."""
        return self._pending(self.main(OUTCOMES)).where(sf.col("ts") < sf.lit(self._cut))

    def remember(self, overdue: DataFrame) -> int:
        """Remember that the old days without any `overdue` entry are over; return how many days have one."""
        with_overdue: Collection[date] = {row["day"] for row in overdue.select(_day("ts")).distinct().collect()}
        over = {day: count for day, count in self._entries.items() if day < self._cut.date() and day not in with_overdue}
        remember_days(self._run.catalog, self.base, over)
        return len(with_overdue)

    def unneeded(self, ended: DataFrame, *, and_overdue: bool = False) -> DataFrame:
        """data_id of data last seen before the cut-off that no entry refers to, apart from entries in `ended` (vin, seq).

        With `and_overdue`, overdue entries count as ended. Data of open campaigns is needed: they have not released all of their
        vehicles.
        """
        waiting = self._pending(ended)
        needed = waiting.where(sf.col("ts") >= sf.lit(self._cut)) if and_overdue else waiting
        old = folded(self.main(META)).where(sf.col("last_seen_at") < sf.lit(self._cut)).select("data_id")
        unneeded = old.join(needed.select("data_id").distinct().hint("shuffle_hash"), "data_id", "left_anti")
        released_later = self._needed_by_campaigns(unneeded)
        return unneeded.where(~sf.col("data_id").isin(released_later)) if released_later else unneeded

    def main(self, table: Table) -> DataFrame:
        """The table as of construction."""
        return self._run.main(table, self.base[table.name])

    def _needed_by_campaigns(self, data_ids: DataFrame) -> list[str]:
        """Return those of `data_ids` that an open campaign will release."""
        campaigns = campaigns_with_data(self._run.catalog, self.base)
        if not campaigns:
            return []
        named = self._run.spark.createDataFrame([(data_id,) for data_id in campaigns], "data_id string")
        matching = [row["data_id"] for row in data_ids.join(sf.broadcast(named), "data_id", "left_semi").collect()]
        candidates = {campaign for data_id in matching for campaign in campaigns[data_id]}
        still_open = open_campaigns(self._run.catalog, self.base, candidates, since=self._cut) if candidates else set()
        return sorted(data_id for data_id in matching if campaigns[data_id] & still_open)

    def _counts(self, table: Table) -> dict[date, int]:
        """Rows by day, from the files' record counts; from the rows if the table is partitioned so that files lack a day."""
        assert table.day_of is not None  # true of every table passed in
        then = self._run.spark.read.option("versionAsOf", self.base[table.name])
        files, day = then.table(f"{self._run.name(table)}.partitions"), f"{table.day_of}_day"
        of = files.schema["partition"].dataType if "partition" in files.columns else None
        if isinstance(of, StructType) and day in of.names:
            rows = files.groupBy(sf.col(f"partition.{day}").alias("day")).agg(sf.sum("record_count").alias("rows")).collect()
            if all(row["day"] is not None for row in rows):
                return {row["day"]: row["rows"] for row in rows}
        counted = self.main(table).groupBy(_day(table.day_of)).agg(sf.count("*").alias("rows"))
        return {row["day"]: row["rows"] for row in counted.collect()}

    def _pending(self, ended: DataFrame) -> DataFrame:
        """Entries without an outcome: recent ones, and old ones of days not known to be over."""
        entries = self.main(IDS).where(self._day_condition("ts")).select(*KEYS, "data_id", "ts")
        return pending(entries, ended.where(self._day_condition("accepted_at")), parts=self._parts, few=False)

    def _day_condition(self, column: str) -> Column:
        if len(self._days) > MAX_DAYS:
            return sf.lit(True)
        first = _midnight(self._cut.date())
        starts = [_midnight(day) for day in self._days]
        ranges = [(sf.col(column) >= sf.lit(at)) & (sf.col(column) < sf.lit(at + ONE_DAY)) for at in starts]
        return reduce(Column.__or__, ranges, sf.col(column) >= sf.lit(first))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, datetime.min.time(), UTC)


def _day(column: str) -> Column:
    return sf.to_date(column).alias("day")
