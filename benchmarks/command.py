"""What the benchmarks' command lines share: a count as their one option, and a folder that is gone afterwards."""

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import Row

PREFIX = "manifold-bench-"


def count_of(about: str | None, name: str, default: int) -> int:
    """The value of the only option, `--<name>`; `about`: the benchmark's docstring, for `--help`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(f"--{name}", dest="count", type=int, default=default)
    count: int = parser.parse_args().count
    return count


def in_a_folder(measure: Callable[[int, Path], list[Row]], count: int) -> list[Row]:
    """What `measure` finds, in a folder that is gone afterwards."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        return measure(count, Path(folder))
