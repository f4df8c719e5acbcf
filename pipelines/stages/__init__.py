"""Stages of `python -m pipelines`: a module for each family of them, and in it a function for each stage, of the same name.

`@stage` makes a function a stage, with the options that it lists. The first line of its docstring is its help text. Functions
import their implementation only when they run: importing PySpark takes a second, and a job without Spark must not wait for it.
The other public functions of the modules are for the console.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

from manifold.settings import Settings
from pipelines.arguments import Declarer

Run = Callable[[Settings, Namespace], str]


@dataclass(frozen=True)
class Stage:
    """One stage: `run` returns its result as JSON, and each of `options` adds options to its parser."""

    run: Run
    options: tuple[Declarer, ...]


def stage(*options: Declarer) -> Callable[[Run], Stage]:
    """Make the decorated function a stage with these options."""
    return lambda run: Stage(run, options)
