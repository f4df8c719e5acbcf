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
    """Return as JSON the number of keys that were rewrapped, and the keys that the ring cannot unwrap."""
    del options
    wrapped, unreadable = rotate_keys(settings)
    return json.dumps({"wrapped": wrapped, "gone": unreadable})


@emits_lineage("rotate_keys", reads=["keys"], writes=["keys"])
def rotate_keys(settings: Settings) -> tuple[int, list[str]]:
    """Rewrap the day keys; return the number of rewrapped keys, and the names of the keys that the ring cannot unwrap."""
    from manifold.lake.day_keys import DayKeys

    wrapped, unreadable = DayKeys.of(settings).rotate()
    if unreadable:
        log.warning("key ring cannot unwrap these keys; data sealed under them is unreadable", keys=unreadable)
    log.info("keys rotated", wrapped=wrapped, gone=len(unreadable))
    return wrapped, unreadable
