"""Ingest, audit, publish and populate, in one application."""

import argparse

from manifold.settings import Settings
from pipelines.arguments import add_interval, add_no_flush, add_run_id, interval_of


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which interval of the archive."""
    add_run_id(parser)
    add_interval(parser)
    add_no_flush(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return the result of the whole run as JSON."""
    from pipelines.ingest.run_all import run_all

    interval = interval_of(settings, options)
    return run_all(settings, run_id=options.run_id, interval=interval, flush_first=not options.no_flush).to_json()
