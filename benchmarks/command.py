"""What the benchmarks' command lines share: a count or a part as their one option, and a folder that is gone afterwards."""

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeVar

import typer

from benchmarks.machine import Row, report
from benchmarks.size import Scaled
from manifold.runtime.log import configure_logging

PREFIX = "manifold-bench-"
Part = Annotated[float, typer.Option(min=0.001, max=1, help="of the full size")]
Size = TypeVar("Size", bound=Scaled)


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


def measure_a_part(name: str, setting: str, size_of: type[Size], run: Callable[[Size], list[Row]]) -> None:
    """Take the option `--part`, and report the whole run, or a smaller one; nothing else should use the machine."""

    def main(part: Part = 1.0) -> None:
        configure_logging("benchmark", level="warning")
        size = size_of.of(part)
        report(name, setting.format(size=size), run(size))

    typer.run(main)
