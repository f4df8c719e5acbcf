"""`python -m benchmarks.ecq [--part 0.1]`: the whole run, or a smaller one."""

from typing import Annotated

import typer

from adapters.log import configure_logging
from benchmarks.ecq import SETTING, Size, run
from benchmarks.machine import report


def main(part: Annotated[float, typer.Option(min=0.001, max=1, help="of the full size")] = 1.0) -> None:
    """Measure compacted queues; nothing else should use the machine."""
    configure_logging("benchmark", level="warning")
    size = Size.of(part)
    report("ecq", SETTING.format(size=size), run(size))


if __name__ == "__main__":
    typer.run(main)
