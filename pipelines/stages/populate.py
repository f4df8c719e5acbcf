"""Offer the lake's pending entries that were not enqueued directly to the queues."""

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
    """Return the counts as JSON. Queues that are not loaded are left alone.

    Raises:
        Permanent: something is missing from the queues. The failed task alerts an operator, because nothing else fills them.
    """
    del options
    done = populate_queues(settings)
    if done.problem:
        raise Permanent(done.problem)
    return done.to_json()


def populate_queues(settings: Settings) -> "Populated":
    """Offer pending entries to the queues; return the counts. Queues that are not loaded are left alone: the result says so."""
    from pipelines.catalog import open_lake
    from pipelines.populate.load import populate
    from pipelines.spark.session import session

    catalog = open_lake(settings)
    with session(settings, "populate", size=0) as spark:
        return populate(spark, catalog, settings, now=datetime.now(UTC))
