"""Compare the queues with the lake; with `--repair` queue what is missing, end what has ended, restore the order."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from manifold.settings import Settings
from pipelines.arguments import add_run_id

if TYPE_CHECKING:
    from pipelines.maintenance.verify import Verified


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: whether to repair."""
    add_run_id(parser)
    parser.add_argument("--repair", action="store_true", help="queue what is missing, end what has ended, put in order")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON the differences between queues and lake, and the number of repaired differences."""
    return verify_queues(settings, repair=options.repair).to_json()


def verify_queues(settings: Settings, *, repair: bool = False) -> "Verified":
    """Compare the queues with the lake; return the differences, and the number of repaired differences."""
    from pipelines.catalog import await_catalog
    from pipelines.maintenance.verify import verify
    from pipelines.spark.session import session

    catalog = await_catalog(settings)
    with session(settings, "verify") as spark:
        return verify(spark, catalog, settings, now=datetime.now(UTC), repair=repair)
