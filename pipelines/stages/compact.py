"""Rewrite small files, sort settled days by vehicle, apply deletes; no row changes."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from manifold.settings import Settings
from pipelines.arguments import add_run_id
from pipelines.lineage import emits_lineage

if TYPE_CHECKING:
    from pipelines.maintenance.compact import Compacted


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all stages have."""
    add_run_id(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return the result as JSON, by table."""
    del options
    return compact_tables(settings).to_json()


@emits_lineage("compact")
def compact_tables(settings: Settings) -> "Compacted":
    """Compact all tables, and return the results by table. Spark starts only if a table needs compaction.

    Raises:
        LeaseHeld: another job is rewriting tables.
    """
    from pipelines.catalog import await_catalog
    from pipelines.ingest.lease import rewriting
    from pipelines.maintenance.compact import compact, has_work
    from pipelines.spark.session import session

    catalog = await_catalog(settings)
    now = datetime.now(UTC)
    if not has_work(catalog, settings, now=now):
        return compact(None, catalog, settings, now=now)  # without Spark, `compact` only describes the tables
    with rewriting(catalog, "compaction"), session(settings, "compact") as spark:
        return compact(spark, catalog, settings, now=now)
