"""Folds the rows that several runs have appended to `sdv_fanout_meta` for the same data_id into one row."""

from datetime import datetime

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from manifold.contracts.tables import META
from manifold.settings import Settings
from pipelines.ingest.maintenance_run import until_not_overtaken
from pipelines.ingest.write_payloads import folded
from pipelines.maintenance.compaction_run import compaction_run, write_and_publish

log = structlog.get_logger(__name__)


def fold_sightings(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime) -> int:
    """Leave one row for each data_id; return the number of rows removed. Idempotent.

    Raises:
        Overtaken: other runs kept being published first; the table is unchanged, run it again.
    """
    return until_not_overtaken()(lambda: _fold(spark, catalog, settings, now))


def _fold(spark: SparkSession, catalog: Catalog, settings: Settings, now: datetime) -> int:
    """Make one attempt at the fold, on main as it is now."""
    attempt = compaction_run(spark, catalog, settings, now)
    sightings = attempt.main(META)
    removed = sightings.count() - sightings.select("data_id").distinct().count()
    if removed:
        write_and_publish(attempt, lambda: attempt.overwrite(META, folded(sightings)))
        log.info("sightings folded", run_id=attempt.run_id, removed=removed)
    return removed
