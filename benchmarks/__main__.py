"""Run benchmarks, one after the other, and print their figures; results of full runs are kept in `benchmarks/results.json`."""

import importlib
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import names
from benchmarks._measure import Size, machine
from benchmarks._results import Result, judge, keep
from manifold.runtime.log import configure_logging

MET = {True: "yes", False: "NO", None: ""}


def main(
    benchmarks: Annotated[list[str] | None, typer.Argument(metavar="NAME", help=f"{', '.join(names())}; all if none")] = None,
    size: Annotated[Size, typer.Option(help="results of small runs are not kept, and have no aims")] = Size.FULL,
) -> None:
    """Run the named benchmarks, or all. Nothing else should use the machine during a run."""
    configure_logging("benchmark", level="warning")
    requested = benchmarks or names()
    if unknown := sorted(set(requested) - set(names())):
        raise typer.BadParameter(f"there is no benchmark {', '.join(unknown)}; choose from {', '.join(names())}")
    for name in requested:
        module = importlib.import_module(f"benchmarks.{name}")
        aims = module.AIMS if size is Size.FULL else {}
        results = judge(name, module.run(size), aims, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=machine())
        show(name, results)
        if size is Size.FULL:
            keep(name, results)


def show(name: str, results: list[Result]) -> None:
    """Print the results as a table."""
    table = Table(title=f"{name} ({machine()})", title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in ("what", "figure", "rival or limit", "ratio", "aim", "met"):
        table.add_column(column)
    for result in results:
        figure = result.figure if result.date else "not measured"
        ratio = "" if result.ratio is None else f"{result.ratio:.3g}"
        table.add_row(result.what, figure, result.rival, ratio, result.aim, MET[result.met])
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    typer.run(main)
