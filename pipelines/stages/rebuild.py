"""Ingest everything recorded, and fill the queues with everything pending, even if they are empty."""

import argparse

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_no_flush, add_run_id


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: whether to flush the recorder first."""
    add_run_id(parser)
    add_no_flush(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON what was ingested, and how much was queued."""
    from pipelines.ingest.run_all import rebuild

    done = rebuild(settings, flush_first=not options.no_flush)
    if done.populated and done.populated.problem:
        raise Permanent(done.populated.problem)
    return done.to_json()
