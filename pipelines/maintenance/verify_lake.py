"""Reads the lake at pinned snapshots, so that the queues can be compared with it."""

from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from manifold.contracts.outcomes import Outcome
from manifold.contracts.tables import IDS, OUTCOMES, SEGMENTS, Table
from manifold.settings import Settings
from pipelines.ingest.publish import main_snapshots
from pipelines.populate.pending import KEYS
from pipelines.populate.snapshot_range import newest_seqs


class PinnedLake:
    """The tables at consistent snapshots of main, as Spark frames. `now` decides which entries are past their retention."""

    def __init__(self, spark: SparkSession, catalog: Catalog, settings: Settings, now: datetime) -> None:
        self.spark = spark
        self.catalog = catalog
        self.settings = settings
        self.since = now - timedelta(days=settings.retention_days)
        self.base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))  # snapshot ids by table name
        self.newest_of_node = newest_seqs(catalog, self.base[SEGMENTS.name])  # newest ingested seq by recorder

    def entries(self) -> DataFrame:
        """Entries within their retention: vin, ts, request_id, seq, data_id, applied."""
        return self.main(IDS).where(sf.col("ts") >= sf.lit(self.since))

    def ended(self) -> DataFrame:
        """Outcomes of entries within their retention."""
        return self.main(OUTCOMES).where(sf.col("accepted_at") >= sf.lit(self.since))

    def ended_twice(self) -> DataFrame | None:
        """(vin, seq) of entries that are in `ended` twice; None if there are none.

        An entry that was withdrawn, but delivered nevertheless, has both outcomes.
        """
        withdrawn = self.ended().where(sf.col("outcome") == Outcome.WITHDRAWN.value).select(*KEYS)
        if withdrawn.isEmpty():  # quick, because file statistics exclude nearly all rows
            return None
        delivered = self.ended().where(sf.col("outcome") == Outcome.DELIVERED.value).select(*KEYS)
        return delivered.join(withdrawn, KEYS, "left_semi")

    def main(self, table: Table) -> DataFrame:
        """All rows of a table at its pinned snapshot."""
        return self.spark.read.option("versionAsOf", self.base[table.name]).table(self._name(table))

    def current(self, table: Table) -> DataFrame:
        """All rows of a table as it is now."""
        return self.spark.table(self._name(table))

    def _name(self, table: Table) -> str:
        return f"{self.settings.catalog_name}.{table.identifier}"
