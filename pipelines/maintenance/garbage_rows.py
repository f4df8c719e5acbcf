"""Finds overdue entries and unneeded data in Spark. A test compares it with the same rules over plain rows.

Entries accepted since the cutoff are all compared with the outcomes. Of the older entries, only those of days that may have an
open entry are compared (`garbage_days`), so the cost of a collection does not grow with the years.
"""

from datetime import UTC, date, datetime, timedelta
from math import ceil

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from manifold.contracts.tables import IDS, META, OUTCOMES, Table
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.write_payloads import folded
from pipelines.maintenance.garbage_campaigns import campaigns_by_data_id, open_campaigns
from pipelines.maintenance.garbage_days import remember_closed_days, remembered_closed_days
from pipelines.maintenance.garbage_plan import days_to_read
from pipelines.populate.pending import KEYS, pending
from pipelines.spark.parallelism import parallelism

ROWS_PER_PARTITION = 400_000
MAX_FILTERED_DAYS = 60  # old days in the filter of a scan; if more days must be read, all rows are
ONE_DAY = timedelta(days=1)


class GarbageRows:
    """Finds overdue entries and unneeded data, in the tables at the base of an attempt.

    Entries accepted, and data last seen, before `cutoff` are past their retention.
    """

    def __init__(self, attempt: Attempt, *, cutoff: datetime) -> None:
        self._attempt = attempt
        self._cutoff = cutoff.astimezone(UTC)
        self._entry_counts = self._count_by_day(IDS)
        closed = remembered_closed_days(attempt.catalog, attempt.base)
        self._old_days = days_to_read(self._entry_counts, closed, before=self._cutoff.date())
        entry_count = sum(self._entry_counts.values())
        self._partitions = max(parallelism(attempt.spark), ceil(entry_count / ROWS_PER_PARTITION))

    def overdue(self) -> DataFrame:
        """(vin, seq, data_id, ts) of entries that were accepted before the cutoff and have no outcome."""
        return self._pending(self._attempt.main(OUTCOMES)).where(sf.col("ts") < sf.lit(self._cutoff))

    def remember_closed_days(self, overdue: DataFrame) -> int:
        """Remember the days before the cutoff without an `overdue` entry as closed; return the number of days with one."""
        days_with_overdue = {row["day"] for row in overdue.select(_day("ts")).distinct().collect()}
        old_counts = {day: count for day, count in self._entry_counts.items() if day < self._cutoff.date()}
        closed = {day: count for day, count in old_counts.items() if day not in days_with_overdue}
        remember_closed_days(self._attempt.catalog, self._attempt.base, closed)
        return len(days_with_overdue)

    def unneeded(self, ended: DataFrame, *, overdue_are_ended: bool = False) -> DataFrame:
        """data_id of data that was last seen before the cutoff, and to which no pending entry refers.

        Entries in `ended` (vin, seq) are not pending; with `overdue_are_ended`, overdue entries are not either. Data of an open
        campaign is needed, too, because the campaign has yet to release vehicles.
        """
        pending_entries = self._pending(ended)
        if overdue_are_ended:
            pending_entries = pending_entries.where(sf.col("ts") >= sf.lit(self._cutoff))
        needed = pending_entries.select("data_id").distinct()
        old = folded(self._attempt.main(META)).where(sf.col("last_seen_at") < sf.lit(self._cutoff)).select("data_id")
        unneeded = old.join(needed.hint("shuffle_hash"), "data_id", "left_anti")
        of_campaigns = self._needed_by_campaigns(unneeded)
        return unneeded.where(~sf.col("data_id").isin(of_campaigns)) if of_campaigns else unneeded

    def _needed_by_campaigns(self, data_ids: DataFrame) -> list[str]:
        """Return the data ids among `data_ids` that an open campaign will release."""
        campaigns = campaigns_by_data_id(self._attempt.catalog, self._attempt.base)
        if not campaigns:
            return []
        campaign_data = self._attempt.spark.createDataFrame([(data_id,) for data_id in campaigns], "data_id string")
        matching_rows = data_ids.join(sf.broadcast(campaign_data), "data_id", "left_semi").collect()
        matching_ids = [row["data_id"] for row in matching_rows]
        if not matching_ids:
            return []
        candidates = {campaign for data_id in matching_ids for campaign in campaigns[data_id]}
        still_open = open_campaigns(self._attempt.catalog, self._attempt.base, candidates, since=self._cutoff)
        return sorted(data_id for data_id in matching_ids if campaigns[data_id] & still_open)

    def _count_by_day(self, table: Table) -> dict[date, int]:
        """Count the rows of each day, from Iceberg's metadata if every partition has a day, else from the rows."""
        assert table.day_of is not None  # true of every table passed in
        pinned = self._attempt.spark.read.option("versionAsOf", self._attempt.base[table.name])
        partitions = pinned.table(f"{self._attempt.name(table)}.partitions")  # Iceberg's metadata table
        partition_type = partitions.schema["partition"].dataType if "partition" in partitions.columns else None
        day_field = f"{table.day_of}_day"
        if isinstance(partition_type, StructType) and day_field in partition_type.names:
            by_day = partitions.groupBy(sf.col(f"partition.{day_field}").alias("day"))
            rows = by_day.agg(sf.sum("record_count").alias("rows")).collect()
            # Files from before the table was partitioned by day have no day.
            if all(row["day"] is not None for row in rows):
                return {row["day"]: row["rows"] for row in rows}
        counts = self._attempt.main(table).groupBy(_day(table.day_of)).agg(sf.count("*").alias("rows"))
        return {row["day"]: row["rows"] for row in counts.collect()}

    def _pending(self, ended: DataFrame) -> DataFrame:
        """Entries that are not in `ended`: those since the cutoff, and those of old days that may have an open entry."""
        entries = self._attempt.main(IDS).where(self._day_condition("ts")).select(*KEYS, "data_id", "ts")
        ended_on_days = ended.where(self._day_condition("accepted_at"))
        return pending(entries, ended_on_days, partitions=self._partitions, broadcast_keys=False)

    def _day_condition(self, column: str) -> Column:
        """Whether the instant in `column` is on a day that must be read. True of every day if too many old days must be read."""
        if len(self._old_days) > MAX_FILTERED_DAYS:
            return sf.lit(True)
        instant = sf.col(column)
        condition = instant >= sf.lit(_midnight(self._cutoff.date()))
        for day in self._old_days:
            start = _midnight(day)
            condition |= (instant >= sf.lit(start)) & (instant < sf.lit(start + ONE_DAY))
        return condition


def _midnight(day: date) -> datetime:
    return datetime.combine(day, datetime.min.time(), UTC)


def _day(column: str) -> Column:
    return sf.to_date(column).alias("day")
