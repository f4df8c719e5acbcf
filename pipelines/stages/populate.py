"""Offer to the queues what is pending in the lake and was not handed over."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_run_id

if TYPE_CHECKING:
    from pipelines.populate.load import Populated


def options(parser: argparse.ArgumentParser) -> None:
    """It takes none of its own."""
    add_run_id(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """The counts as JSON. Queues that are not loaded are left alone.

    Raises:
        Permanent: something is not in the queues. The task fails, so that an operator is alerted: nothing else fills them.
    """
    del options
    done = populate_queues(settings)
    if done.problem:
        raise Permanent(done.problem)
    return done.to_json()


def populate_queues(settings: Settings) -> "Populated":
    """Offer what is pending to the queues; the counts. Queues that are not loaded are left alone, and the result says so."""
    from pipelines.catalog import open_lake
    from pipelines.populate.load import populate
    from pipelines.spark.session import session

    catalog = open_lake(settings)
    with session(settings, "populate", size=0) as spark:
        return populate(spark, catalog, settings, now=datetime.now(UTC))
