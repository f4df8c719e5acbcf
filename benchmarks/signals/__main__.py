"""`python -m benchmarks.signals [--part 0.1] [--case door|ingest|libraries|all]`: the whole run, or a smaller one."""

from enum import StrEnum
from typing import Annotated

import typer

from benchmarks.command import Part
from benchmarks.machine import report
from benchmarks.signals import SETTING, Size, run
from manifold.runtime.log import configure_logging


class Case(StrEnum):
    """What is measured."""

    ALL, DOOR, INGEST, LIBRARIES = "all", "door", "ingest", "libraries"


def main(
    part: Part = 1.0,
    case: Annotated[
        Case, typer.Option(help="the door, ingest into the lake, what each library takes for a message, or all")
    ] = Case.ALL,
) -> None:
    """Measure the AMQP door; nothing else should use the machine."""
    configure_logging("benchmark", level="warning")
    size = Size.of(part)
    report("signals", SETTING.format(size=size), run(size, case))


if __name__ == "__main__":
    typer.run(main)
