"""`python -m benchmarks.dashboards [--minutes 10] [--into docs/img]`: a platform at work, its Prometheus, and six pictures."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.command import PREFIX
from benchmarks.dashboards._draw import draw
from benchmarks.dashboards._load import Load, run
from benchmarks.machine import facts, free_ports
from manifold.runtime.log import configure_logging
from manifold.sandbox.platform import supervise
from manifold.settings import load_settings
from tests.infra.prometheus import ask, scraping
from tests.infra.seen import dashboards
from tests.support.servers import ROOT, Server, free_port

POINTS = 200  # of a line
SAID = (
    "Drawn from infra/grafana/dashboards/{name}.json by python -m benchmarks.dashboards, and not by Grafana: {minutes:g} min of "
    "the sandbox with {vehicles} vehicles, scraped every {every} s ({machine}; {day:%Y-%m-%d}, UTC)"
)
EVERY_S = 5


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="how long the platform works")] = 10.0,
    into: Annotated[Path, typer.Option(help="folder of the pictures")] = ROOT / "docs" / "img",
    answers: Annotated[Path | None, typer.Option(help="keep what Prometheus answered, or draw what is kept there")] = None,
) -> None:
    """Draw the dashboards."""
    configure_logging("benchmark", level="warning")
    kept = json.loads(answers.read_text()) if answers and answers.exists() else _at_work(minutes)
    if answers:
        answers.write_text(json.dumps(kept))
    for name, board in dashboards().items():
        file = into / f"dashboard-{name}.png"
        said = SAID.format(name=name, every=EVERY_S, day=datetime.fromtimestamp(kept["at"], UTC), **kept["of"])
        during = kept["at"], kept["at"] + kept["of"]["minutes"] * 60
        empty = draw(board, _from(kept["series"]), file, during=during, said=said)
        sys.stdout.write(f"{file}: {file.stat().st_size // 1000} kB; without data: {', '.join(empty) or 'none'}\n")


def _from(series: dict[str, list[Any]]) -> Callable[[str], list[Any]]:
    return lambda expression: series.get(expression, [])


def _at_work(minutes: float) -> dict[str, Any]:
    """What Prometheus says of every expression after a platform has worked for so long."""
    load = Load()
    with TemporaryDirectory(prefix=PREFIX) as folder:
        more = {"signals_port": free_port(), "amqp_port": free_port(), "dispatchers": 2}
        settings = load_settings(home=Path(folder) / "home", with_airflow=False, **(free_ports() | more))
        supervise.up(settings)
        try:
            with scraping(settings, Path(folder) / "prometheus", every_s=EVERY_S) as prometheus:
                began = time.time()
                asyncio.run(run(settings, load, minutes * 60))
                series = _series(prometheus, began, time.time())
        finally:
            supervise.down(settings)
    of = {"minutes": minutes, "vehicles": load.vehicles, "machine": facts()["machine"].partition("-")[0]}
    return {"at": began, "of": of, "series": series}


def _series(prometheus: Server, began: float, ended: float) -> dict[str, list[Any]]:
    over = {"start": f"{began}", "end": f"{ended}", "step": f"{(ended - began) / POINTS:.3f}"}
    asked = {target["expr"] for board in dashboards().values() for panel in board["panels"] for target in panel["targets"]}
    return {expression: ask(prometheus, expression, **over) for expression in sorted(asked)}


if __name__ == "__main__":
    typer.run(main)
