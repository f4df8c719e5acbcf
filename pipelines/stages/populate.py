"""Offer the lake's pending entries to the queues, except entries that were enqueued directly."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_run_id

if TYPE_CHECKING:
    from pipelines.populate.load import Populated


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all stages have."""
    add_run_id(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return the counts as JSON. Queues that were never loaded, or were lost, stay as they are.

    Raises:
        Permanent: entries are missing from the queues. No later run adds them, so the failed task alerts an operator.
    """
    del options
    populated = populate_queues(settings)
    if populated.problem:
        raise Permanent(populated.problem)
    return populated.to_json()


def populate_queues(settings: Settings) -> "Populated":
    """Offer pending entries to the queues; return the counts. If the queues are not loaded, the result's `problem` says so."""
    from pipelines.catalog import open_lake
    from pipelines.populate.load import populate
    from pipelines.spark.session import session

    catalog = open_lake(settings)
    with session(settings, "populate", size=0) as spark:
        return populate(spark, catalog, settings, now=datetime.now(UTC))
