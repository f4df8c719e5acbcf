"""Stages of `python -m pipelines`. Each module is a stage of the same name; the first line of its docstring is its help text.

A module has `options(parser)`, which adds the stage's options, and `run(settings, options)`, which returns its result as JSON.
Some have a third function, which the console calls. Modules import their implementation only when they run: importing PySpark
takes a second, and a job without Spark must not wait for it.
"""

import argparse
from importlib import import_module
from typing import Protocol, cast

from manifold.settings import Settings

STAGES = (
    *("discover", "ingest", "audit", "publish", "populate", "rebuild", "run_all", "stream"),
    *("compact", "garbage", "check", "migrate", "verify", "process_signals", "rotate_keys"),
    *("campaign_order", "campaign_asks", "campaign_reports", "campaign_targets"),
)


class Stage(Protocol):
    """The interface of a module in this package."""

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this stage."""

    def run(self, settings: Settings, options: argparse.Namespace) -> str:
        """Run the stage; return its result as JSON."""


def stage_of(name: str) -> Stage:
    """The stage with this name."""
    return cast("Stage", import_module(f"{__name__}.{name}"))
