"""`python -m tests.faults --minutes 10 --seeds 1,2`: inject faults into the whole platform and prove its promises."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console

from manifold.contracts.errors import ManifoldError
from tests.faults.history import read
from tests.faults.report import table_of
from tests.faults.run import Plan, Result, play
from tests.faults.stories import stories

console = Console()
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))  # every lost connection is in the history


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="of faults, for each seed")] = 10.0,
    seeds: Annotated[str, typer.Option(help="runs, by their seeds: 1,2,3")] = "1",
    vehicles: Annotated[int, typer.Option(min=10, help="how many vehicles")] = 40,
    wipes: Annotated[bool, typer.Option(help="also wipe Redis and rebuild it")] = True,
    tls: Annotated[bool, typer.Option(envvar="MANIFOLD_TLS", help="with TLS, and what can go wrong with it")] = False,
    folder: Annotated[Path | None, typer.Option(help="where the runs keep their state; default: a temporary folder")] = None,
) -> None:
    """Succeed if nothing is lost, out of order or resurrected; a failed run keeps its history."""
    root = folder or Path(tempfile.mkdtemp(prefix="manifold-faults-"))
    results: list[Result] = []
    for seed in [int(seed) for seed in seeds.split(",")]:
        plan = Plan(seed, minutes * 60, root / f"seed-{seed}", vehicles=vehicles, wipes=wipes, tls=tls)
        try:
            results.append(play(plan, lambda what, s=seed: console.log(f"seed {s}: {what}", highlight=False)))  # type: ignore[misc]
        except ManifoldError as exc:
            console.print(f"faults: {exc}", style="red", highlight=False)
            raise typer.Exit(1) from exc
    console.print(table_of(results))
    failed = [result for result in results if not result.held]
    for result in failed:
        console.print(f"seed {result.plan.seed} FAILED; its history: {result.history}", style="red", highlight=False)
        if result.trouble:
            console.print(result.trouble, highlight=False, markup=False)
        for line in stories(read(result.history), result.verdict):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)
    if folder is None:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    typer.run(main)
