"""Report what is new in the archive, whether the queues lag behind the lake, and which stages must follow. No Spark."""

import argparse
from datetime import UTC, datetime

from manifold.settings import Settings
from pipelines.arguments import add_interval, add_no_flush, add_run_id, interval_of


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which interval of the archive, and whether other stages follow."""
    add_run_id(parser)
    add_interval(parser)
    add_no_flush(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what is new")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON what is new in the archive, and which stages must follow."""
    from manifold.archive.flush import flush
    from pipelines.catalog import open_lake
    from pipelines.ingest.discover import discover

    if not options.no_flush:
        flush(settings)
    interval = interval_of(settings, options)
    catalog = open_lake(settings)
    return discover(catalog, settings, now=datetime.now(UTC), interval=interval, dry_run=options.dry_run).to_json()
