"""Reprocess the lake's signals: days with rows made by other rules, or with payloads that could not be read. No Spark."""

import argparse
from datetime import UTC, datetime

from manifold.settings import Settings
from pipelines.arguments import add_days, add_run_id


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which days, and whether to reprocess every one of them."""
    add_run_id(parser)
    add_days(parser)
    parser.add_argument("--again", action="store_true", help="all of these days, also those that the rules of now have made")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON the days that were reprocessed, and the number of their rows."""
    from pipelines.catalog import await_catalog
    from pipelines.signals.process import process_again

    catalog = await_catalog(settings)
    now = datetime.now(UTC)
    return process_again(catalog, settings, now=now, start=options.start, end=options.end, again=options.again).to_json()
