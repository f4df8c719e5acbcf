"""`python -m benchmarks.signals [--part 0.1]`: the whole run, or a smaller one."""

from typing import Annotated

import typer

from adapters.log import configure_logging
from benchmarks.machine import report
from benchmarks.signals import SETTING, Size, run


def main(part: Annotated[float, typer.Option(min=0.001, max=1, help="of the full size")] = 1.0) -> None:
    """Measure the AMQP door; nothing else should use the machine."""
    configure_logging("benchmark", level="warning")
    size = Size.of(part)
    report("signals", SETTING.format(size=size), run(size))


if __name__ == "__main__":
    typer.run(main)
