"""`python -m infra.grafana.pictures [--minutes 10] [--into docs/img]`: run a platform under load and draw each dashboard."""

import asyncio
import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import psutil
import typer

from infra.grafana.pictures._draw import draw
from infra.grafana.pictures._load import Load, run
from infra.grafana.pictures._prometheus import Prometheus, scraping
from manifold.runtime.log import configure_logging
from manifold.sandbox.platform import supervise
from manifold.sandbox.platform.ports import free_ports
from manifold.settings import load_settings

ROOT = Path(__file__).resolve().parents[3]
POINTS = 200  # of a line
SAID = (
    "Drawn from infra/grafana/dashboards/{name}.json by python -m infra.grafana.pictures, and not by Grafana: {minutes:g} min of "
    "the sandbox with {vehicles} vehicles, scraped every {every} s ({machine}; {day:%Y-%m-%d}, UTC)"
)
EVERY_S = 5


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="how long the platform works")] = 10.0,
    into: Annotated[Path, typer.Option(help="folder of the pictures")] = ROOT / "docs" / "img",
    answers: Annotated[Path | None, typer.Option(help="keep what Prometheus answered, or draw what is kept there")] = None,
) -> None:
    """Draw the dashboards."""
    configure_logging("pictures", level="warning")
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
    with TemporaryDirectory(prefix="manifold-pictures-") as folder:
        settings = load_settings(home=Path(folder) / "home", with_airflow=False, dispatchers=2, **free_ports())
        supervise.up(settings)
        try:
            with scraping(settings, Path(folder) / "prometheus", every_s=EVERY_S) as prometheus:
                began = time.time()
                asyncio.run(run(settings, load, minutes * 60))
                series = _series(prometheus, began, time.time())
        finally:
            supervise.down(settings)
    of = {"minutes": minutes, "vehicles": load.vehicles, "machine": _machine()}
    return {"at": began, "of": of, "series": series}


def dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard as Grafana reads it, by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "infra/grafana/dashboards").glob("*.json"))}


def _machine() -> str:
    """Cores, memory and kernel of this machine, in words."""
    release = platform.release().partition("-")[0]
    return f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GiB, {platform.system()} {release}"


def _series(prometheus: Prometheus, began: float, ended: float) -> dict[str, list[Any]]:
    over = {"start": f"{began}", "end": f"{ended}", "step": f"{(ended - began) / POINTS:.3f}"}
    asked = {target["expr"] for board in dashboards().values() for panel in board["panels"] for target in panel["targets"]}
    return {expression: prometheus.ask(expression, **over) for expression in sorted(asked)}


if __name__ == "__main__":
    typer.run(main)
