"""The report pages (`manifold.lake.reports`): one per run, an index, and as many runs as the settings keep."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader

from expectations._findings import Audit, as_json
from expectations._suites import load_list_suites, load_suites
from manifold.lake.files import Files
from manifold.lake.reports import (
    INDEX,
    MAX_CONCURRENT_READS,
    RUNS,
    STYLE,
    VALIDATIONS,
    State,
    audit_result_path,
    kept_runs,
    run_page,
)

PAGES = Environment(loader=PackageLoader("expectations", "pages"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
PAGES.filters["url"] = lambda text: quote(str(text))
MAX_INDEX_WRITES = 5


def publish_pages(audit: Audit, *, as_of: datetime, reports: Files, keep: int, made: Path) -> None:
    """Write the run's page, remove the oldest runs beyond `keep`, and list the remaining ones on the index.

    `made` is the local folder to which Great Expectations has written its own pages of this run.
    """
    reports.remove(f"{RUNS}/{audit.run_id}")  # by an earlier attempt, which may have had other tables
    _copy_pages(made, reports)
    content = as_json(audit, as_of)
    content["details"] = {table: _details(reports, table, audit) for table in audit.rows}
    _write_run(reports, content)
    for run in kept_runs(reports)[keep:]:
        _remove(reports, run["run_id"])
    _write_index(reports)


def record_states(reports: Files, states: Mapping[str, tuple[str, State]]) -> None:
    """Record on the pages and on the index whether these runs were published.

    Args:
        reports: the store of the reports.
        states: by run id, the audit that it is about (its `at`), and the state; a newer audit keeps its own.
    """
    for run in kept_runs(reports):
        at, state = states.get(run["run_id"], (None, None))
        if state is not None and run.get("at") == at:
            _write_run(reports, run | {"state": state})
    _write_index(reports)


def _write_run(reports: Files, content: dict[str, Any]) -> None:
    _write(reports, run_page(content["run_id"]), PAGES.get_template("run.html").render(run=content))
    _write(reports, audit_result_path(content["run_id"]), json.dumps(content, indent=1))


def _write_index(reports: Files) -> None:
    """List the runs. Of two processes that do so at once, the last to write has seen the results of both."""
    shown = None
    for _ in range(MAX_INDEX_WRITES):
        runs = kept_runs(reports)
        if runs == shown:
            return
        _write(reports, INDEX, PAGES.get_template("index.html").render(runs=runs))
        shown = runs


def _copy_pages(made: Path, reports: Files) -> None:
    """Copy these pages to the store, and the style sheet if it is missing.

    The library's own static files stay behind: no page uses them, and they take four megabytes.
    """

    def put(file: Path) -> None:
        reports.write(str(file.relative_to(made)), file.read_bytes())

    if not reports.has(STYLE):
        reports.write(STYLE, (files("expectations") / "pages" / STYLE).read_bytes())
    with ThreadPoolExecutor(MAX_CONCURRENT_READS, "reports") as pool:
        list(pool.map(put, (file for file in made.rglob("*") if file.is_file() and file.relative_to(made).parts[0] != "static")))


def _details(reports: Files, table: str, audit: Audit) -> str | None:
    """Great Expectations' newest page of this table and run; older pages of the same run are removed.

    A table without rows has no page; one that exists is of an earlier attempt, and is removed, too.
    """
    folder = f"{VALIDATIONS}/{table}/{audit.run_id}"
    if not audit.rows[table]:
        reports.remove(folder)
        return None
    pages = [path for path in reports.below(folder) if path.endswith(".html")]
    for old in pages[:-1]:
        reports.remove(str(PurePosixPath(old).parent))
    return pages[-1] if pages else None


def _remove(reports: Files, run_id: str) -> None:
    for table in (*load_suites(), *load_list_suites()):
        reports.remove(f"{VALIDATIONS}/{table}/{run_id}")
    reports.remove(f"{RUNS}/{run_id}")


def _write(reports: Files, path: str, text: str) -> None:
    reports.write(path, text.encode())
