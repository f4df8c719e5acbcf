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
from infra.grafana.pictures._load import Load, generate_load
from infra.grafana.pictures._prometheus import Prometheus, scraping
from manifold.runtime.log import configure_logging
from manifold.sandbox.platform import supervise
from manifold.sandbox.platform.ports import free_ports
from manifold.settings import load_settings

ROOT = Path(__file__).resolve().parents[3]
POINTS = 200  # in each line of a chart
FOOTER = (
    "Drawn from infra/grafana/dashboards/{name}.json by python -m infra.grafana.pictures, and not by Grafana: {minutes:g} min of "
    "the sandbox with {vehicles} vehicles, scraped every {every} s ({machine}; {day:%Y-%m-%d}, UTC)"
)
SCRAPE_S = 5


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="how long the platform works")] = 10.0,
    into: Annotated[Path, typer.Option(help="folder of the pictures")] = ROOT / "docs" / "img",
    answers: Annotated[Path | None, typer.Option(help="keep what Prometheus answered, or draw what is kept there")] = None,
) -> None:
    """Draw the dashboards."""
    configure_logging("pictures", level="warning")
    recorded = json.loads(answers.read_text()) if answers and answers.exists() else _record(minutes)
    if answers:
        answers.write_text(json.dumps(recorded))
    began, run, series = recorded["at"], recorded["of"], recorded["series"]
    period = began, began + run["minutes"] * 60
    for name, board in dashboards().items():
        file = into / f"dashboard-{name}.png"
        footer = FOOTER.format(name=name, every=SCRAPE_S, day=datetime.fromtimestamp(began, UTC), **run)
        empty = draw(board, _reader(series), file, period=period, footer=footer)
        sys.stdout.write(f"{file}: {file.stat().st_size // 1000} kB; without data: {', '.join(empty) or 'none'}\n")


def _reader(series: dict[str, list[Any]]) -> Callable[[str], list[Any]]:
    """Return a function that returns the recorded series of an expression."""
    return lambda expression: series.get(expression, [])


def _record(minutes: float) -> dict[str, Any]:
    """Run a platform under load for so many minutes, and return the series of every expression in the dashboards.

    The keys are `at` (when the load began, Unix seconds), `of` (about the run, for the footer) and `series` (by expression).
    """
    load = Load()
    with TemporaryDirectory(prefix="manifold-pictures-") as folder:
        settings = load_settings(home=Path(folder) / "home", with_airflow=False, dispatchers=2, **free_ports())
        supervise.up(settings)
        try:
            with scraping(settings, Path(folder) / "prometheus", every_s=SCRAPE_S) as prometheus:
                began = time.time()
                asyncio.run(generate_load(settings, load, minutes * 60))
                series = _series(prometheus, began, time.time())
        finally:
            supervise.down(settings)
    about_run = {"minutes": minutes, "vehicles": load.vehicles, "machine": _machine()}
    return {"at": began, "of": about_run, "series": series}


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the content of every dashboard file, by the dashboard's name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "infra/grafana/dashboards").glob("*.json"))}


def _machine() -> str:
    """Return cores, memory and kernel of this machine, as text."""
    release = platform.release().partition("-")[0]
    return f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GiB, {platform.system()} {release}"


def _series(prometheus: Prometheus, began: float, ended: float) -> dict[str, list[Any]]:
    """Return the series of every expression in the dashboards, over the time from `began` to `ended` (Unix seconds)."""
    step_s = (ended - began) / POINTS
    query_range = {"start": f"{began}", "end": f"{ended}", "step": f"{step_s:.3f}"}
    panels = [panel for board in dashboards().values() for panel in board["panels"]]
    expressions = {target["expr"] for panel in panels for target in panel["targets"]}
    return {expression: prometheus.query(expression, **query_range) for expression in sorted(expressions)}


if __name__ == "__main__":
    typer.run(main)
