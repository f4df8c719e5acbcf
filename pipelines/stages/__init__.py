"""The stages of `python -m pipelines`: one a module, found by its name, whose docstring begins with what it is for.

Each has `options(parser)`, which adds what it takes, and `run(settings, options)`, which returns its result as JSON. Where the
console does the same, it calls the function beside them. Modules import what does the work only when they run: Spark's library
alone takes a second, and a job that needs none must not wait for it.
"""

import argparse
from importlib import import_module
from typing import Protocol, cast

from manifold.settings import Settings

STAGES = (
    *("discover", "ingest", "audit", "publish", "populate", "rebuild", "run_all", "stream"),
    *("compact", "garbage", "check", "migrate", "verify", "process_signals", "rotate_keys"),
)


class Stage(Protocol):
    """The interface of a module in this package."""

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add what this stage takes."""

    def run(self, settings: Settings, options: argparse.Namespace) -> str:
        """Do it; the result as JSON."""


def stage_of(name: str) -> Stage:
    """The stage of that name."""
    return cast("Stage", import_module(f"{__name__}.{name}"))
