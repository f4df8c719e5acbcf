"""Ingest, audit, publish and populate in micro-batches, continuously."""

import argparse

from manifold.settings import Settings
from pipelines.arguments import add_run_id


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: when to end. Without them, only SIGTERM or SIGINT ends the stream."""
    add_run_id(parser)
    parser.add_argument("--until-idle", action="store_true", help="end when nothing is new")
    parser.add_argument("--for-seconds", type=float, help="end after this long")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON the number of micro-batches, and what they ingested."""
    from pipelines.stream.query import stream

    return stream(settings, until_idle=options.until_idle, for_s=options.for_seconds).to_json()
