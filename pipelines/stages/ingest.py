"""Write new segments of the archive to the branches of a run, and audit it with Great Expectations, in one application."""

import argparse
from datetime import UTC, datetime

from manifold.settings import Settings
from pipelines.arguments import add_interval, add_no_flush, add_run_id, interval_of


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which interval of the archive."""
    add_run_id(parser)
    add_interval(parser)
    add_no_flush(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return the counts of the run as JSON. A failed audit is no error here: the stage `audit` reports it and stops the run."""
    from manifold.archive.flush import flush
    from manifold.archive.store import Archive
    from pipelines.catalog import open_lake
    from pipelines.ingest.ledger import new_segments
    from pipelines.ingest.run import Run, new_run_id
    from pipelines.ingest.runs import ingest_to_branches
    from pipelines.ingest.trends import trends_if_held_back
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    interval = interval_of(settings, options)
    catalog = open_lake(settings)
    now = datetime.now(UTC)
    if not options.no_flush:
        flush(settings)
    run_id = options.run_id or new_run_id(now)
    new = new_segments(catalog, Archive(settings.archive, settings.s3), interval)
    bytes_to_ingest = sum(segment.size for segment in new)
    spark_session = session(settings, "ingest", meanwhile=GREAT_EXPECTATIONS, size=bytes_to_ingest)
    with trends_if_held_back(settings), spark_session as spark:
        return ingest_to_branches(Run(spark, catalog, settings, run_id, now, interval)).to_json()
