"""Take in everything recorded, and fill the queues with everything pending, also where they are empty."""

import argparse

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_no_flush, add_run_id


def options(parser: argparse.ArgumentParser) -> None:
    """Whether the recorder is asked first."""
    add_run_id(parser)
    add_no_flush(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """The result as JSON: what was taken in, and how much was queued."""
    from pipelines.ingest.run_all import rebuild

    done = rebuild(settings, flush_first=not options.no_flush)
    if done.populated and done.populated.problem:
        raise Permanent(done.populated.problem)
    return done.to_json()
