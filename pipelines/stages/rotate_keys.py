"""Rewrap each day's signal key under the key ring's current key; no signal is touched. No Spark."""

import argparse
import json

import structlog

from manifold.settings import Settings
from pipelines.arguments import add_run_id
from pipelines.lineage import emits_lineage

log = structlog.get_logger(__name__)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all stages have."""
    add_run_id(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON how many keys were rewrapped, and which the ring cannot unwrap."""
    del options
    wrapped, gone = rotate_keys(settings)
    return json.dumps({"wrapped": wrapped, "gone": gone})


@emits_lineage("rotate_keys", reads=["keys"], writes=["keys"])
def rotate_keys(settings: Settings) -> tuple[int, list[str]]:
    """Rewrap the day keys; return how many, and those that the ring cannot unwrap."""
    from manifold.lake.day_keys import DayKeys

    wrapped, gone = DayKeys.of(settings).rotate()
    if gone:
        log.warning("key ring cannot unwrap these keys; data sealed under them is unreadable", keys=gone)
    log.info("keys rotated", wrapped=wrapped, gone=len(gone))
    return wrapped, gone
