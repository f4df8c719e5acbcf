"""Merges the rows that several runs have appended to `sdv_fanout_meta` for the same data_id into one row."""

from datetime import datetime

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from manifold.contracts.tables import META
from manifold.settings import Settings
from pipelines.ingest.maintenance_run import until_not_overtaken
from pipelines.ingest.write_payloads import folded
from pipelines.maintenance.compaction_run import compaction_attempt, write_and_publish

log = structlog.get_logger(__name__)


def merge_sightings(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime) -> int:
    """Leave one row of `sdv_fanout_meta` for each data_id; return the number of rows removed. Idempotent.

    Raises:
        Overtaken: other runs kept being published first; the table is unchanged, run it again.
    """
    return until_not_overtaken()(lambda: _merge(spark, catalog, settings, now))


def _merge(spark: SparkSession, catalog: Catalog, settings: Settings, now: datetime) -> int:
    """Make one attempt at the merge, on main as it is now."""
    attempt = compaction_attempt(spark, catalog, settings, now)
    sightings = attempt.main(META)  # each row counts how often one run has seen a data_id
    removed_rows = sightings.count() - sightings.select("data_id").distinct().count()
    if removed_rows:
        write_and_publish(attempt, lambda: attempt.overwrite(META, folded(sightings)))
        log.info("rows of the same data_id merged", table=META.name, run_id=attempt.run_id, removed_rows=removed_rows)
    return removed_rows
