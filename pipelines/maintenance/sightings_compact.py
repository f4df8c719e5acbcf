"""Compaction of sightings: the rows that several runs have added to `sdv_fanout_meta` for one data_id become one."""

from datetime import datetime

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from manifold.contracts.tables import META, SEGMENTS
from manifold.settings import Settings
from pipelines.ingest.maintenance_run import until_not_overtaken
from pipelines.ingest.publish import main_snapshots
from pipelines.ingest.transforms import folded
from pipelines.maintenance.compaction_run import compaction_run, write_and_publish
from pipelines.maintenance.delete_collected import replace_rows

log = structlog.get_logger(__name__)


def fold_sightings(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime) -> int:
    """Leave one row of each data_id; by how many rows the table is shorter.

    Raises:
        ConcurrentPublish: other runs were published all the time; nothing is lost, do it again.
    """
    return until_not_overtaken()(lambda: _fold(spark, catalog, settings, now))


def _fold(spark: SparkSession, catalog: Catalog, settings: Settings, now: datetime) -> int:
    run = compaction_run(spark, catalog, settings, now)
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    rows = run.main(META, base[META.name]).select(*META.arrow_schema.names)
    several = rows.groupBy("data_id").count().where("count > 1")
    sightings = rows.join(several.select("data_id"), "data_id", "left_semi").persist()
    try:
        made = folded(sightings)
        gone = sightings.count() - made.count()
        if gone:
            changes = (
                sightings.distinct().withColumn("is_new", sf.lit(False)).unionByName(made.withColumn("is_new", sf.lit(True)))
            )
            write_and_publish(run, base, lambda: replace_rows(run, META, changes, "is_new", base[META.name]))
    finally:
        sightings.unpersist()
    log.info("sightings are folded", rows=gone)
    return gone
