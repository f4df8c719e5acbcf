"""Offer to the queues what is pending in the lake and was not handed over. Without Spark where that is little."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_run_id
from pipelines.spark.needed import NeedsSpark, add_without_spark

if TYPE_CHECKING:
    from pipelines.populate.load import Populated


def options(parser: argparse.ArgumentParser) -> None:
    """Whether Spark may be started."""
    add_run_id(parser)
    add_without_spark(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """The result as JSON. A problem fails the task, so that an operator is alerted: nothing else fills the queues.

    This is the last stage of a run, so the charts over time are drawn here.
    """
    from pipelines.ingest.trends import draw_trends

    done = populate_queues(settings, without_spark=options.without_spark)
    draw_trends(settings, now=datetime.now(UTC))
    if done.problem:
        raise Permanent(done.problem)
    return done.to_json()


def populate_queues(settings: Settings, *, without_spark: bool = False) -> "Populated":
    """Offer what is pending to the queues; returns the counts. Queues that are not loaded are left alone, and the result says so.

    Raises:
        NeedsSpark: there is too much to do `without_spark`; nothing has happened yet.
    """
    from pipelines.catalog import open_lake
    from pipelines.populate.load import populate

    catalog = open_lake(settings)
    try:
        return populate(None, catalog, settings, now=datetime.now(UTC))
    except NeedsSpark:
        if without_spark:
            raise
    from pipelines.spark.session import session

    with session(settings, "populate") as spark:
        return populate(spark, catalog, settings, now=datetime.now(UTC))
