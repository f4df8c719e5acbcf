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
    """Return as JSON the counts of the ingest and of the populate.

    Raises:
        Permanent: entries are missing from the queues.
    """
    from pipelines.ingest.run_all import rebuild

    result = rebuild(settings, flush_first=not options.no_flush)
    if result.populated and result.populated.problem:
        raise Permanent(result.populated.problem)
    return result.to_json()
