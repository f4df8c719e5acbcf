"""The reports folder: one page a run, one index of all, and only as many runs as the settings keep.

index.html                  every run, the newest first; a stable address
trends.html                 rows and broken rules over these runs, as charts
runs/<run>/index.html       one run: verdict, findings with sample rows, links
runs/<run>/audit.json       the same for programs
validations/<table>/<run>/  Great Expectations' own pages
"""

import json
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader

from expectations._findings import Audit
from expectations._results import CHART_HEIGHT, as_json, charts_of

PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "pages"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
PAGES.filters["url"] = lambda text: quote(str(text))


def run_page(reports: Path, run_id: str) -> Path:
    """The page of one run."""
    return reports / "runs" / run_id / "index.html"


def publish_pages(audit: Audit, *, as_of: datetime, reports: Path, keep: int) -> None:
    """Write the run's page, remove the oldest runs beyond `keep`, and list what is left on the index."""
    content = as_json(audit, as_of)
    content["details"] = {table: _details(reports, table, audit.run_id) for table in audit.rows}
    folder = audit.report.parent
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "audit.json", json.dumps(content, indent=1))
    _write(audit.report, PAGES.get_template("run.html").render(run=content))
    runs = sorted(_runs(reports), key=lambda run: (run["as_of"], run["run_id"]), reverse=True)
    for run in runs[keep:]:
        _remove(reports, run["run_id"])
    _write(reports / "index.html", PAGES.get_template("index.html").render(runs=runs[:keep]))
    trends = PAGES.get_template("trends.html")
    _write(reports / "trends.html", trends.render(charts=charts_of(runs[:keep]), runs=len(runs[:keep]), height=CHART_HEIGHT))


def _runs(reports: Path) -> Iterator[dict[str, Any]]:
    for path in (reports / "runs").glob("*/audit.json"):
        yield json.loads(path.read_text())


def _details(reports: Path, table: str, run_id: str) -> str | None:
    """Great Expectations' newest page of this table and run, below `reports`; older ones of the same run go."""
    pages = sorted((reports / "validations" / table / run_id).glob("*/*.html"))
    for old in pages[:-1]:
        shutil.rmtree(old.parent)
    return str(pages[-1].relative_to(reports)) if pages else None


def _remove(reports: Path, run_id: str) -> None:
    for folder in (*(reports / "validations").glob(f"*/{run_id}"), reports / "runs" / run_id):
        shutil.rmtree(folder, ignore_errors=True)  # another audit may be removing it too


def _write(path: Path, text: str) -> None:
    """Whole or not at all: somebody may be reading the page."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
