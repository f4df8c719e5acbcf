"""Writes the report pages (`manifold.lake.reports`): a page per run, and an index of the runs. Removes pages of old runs."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader

from expectations._findings import Audit, json_content
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


def publish_pages(audit: Audit, *, as_of: datetime, reports: Files, keep: int, site: Path) -> None:
    """Write the run's page, remove the pages of all but the newest `keep` runs, and write the index.

    `site` is the local folder to which Great Expectations has written its pages of this run.
    """
    reports.remove(f"{RUNS}/{audit.run_id}")  # pages of an earlier attempt, which may have had other tables
    _copy_pages(site, reports)
    content = json_content(audit, as_of)
    content["details"] = {table: _keep_newest_details(reports, table, audit) for table in audit.rows}
    _write_run(reports, content)
    for run in kept_runs(reports)[keep:]:  # `kept_runs` lists the newest run first
        _remove_run(reports, run["run_id"])
    _write_index(reports)


def record_states(reports: Files, states: Mapping[str, tuple[str, State]]) -> None:
    """Record the states of runs on their pages and on the index.

    Args:
        reports: the store of the reports.
        states: run id → the instant of the audit (`at`) and the state. If the run has a newer audit, its state is not changed.
    """
    for run in kept_runs(reports):
        if run["run_id"] not in states:
            continue
        audited_at, state = states[run["run_id"]]
        if run.get("at") == audited_at:
            _write_run(reports, run | {"state": state})
    _write_index(reports)


def _write_run(reports: Files, content: dict[str, Any]) -> None:
    _write(reports, run_page(content["run_id"]), PAGES.get_template("run.html").render(run=content))
    _write(reports, audit_result_path(content["run_id"]), json.dumps(content, indent=1))


def _write_index(reports: Files) -> None:
    """Write the index of the runs; repeat this, a few times at most, while other processes change the list of runs meanwhile.

    If two processes write the index at the same time, the one that writes last has seen the runs of both.
    """
    written_runs = None
    for _ in range(MAX_INDEX_WRITES):
        runs = kept_runs(reports)
        if runs == written_runs:
            return
        _write(reports, INDEX, PAGES.get_template("index.html").render(runs=runs))
        written_runs = runs


def _copy_pages(site: Path, reports: Files) -> None:
    """Copy the pages in the folder `site` to the store, and the style sheet if the store lacks it.

    The library's static files are not copied: no page uses them, and they take four megabytes.
    """

    def copy(file: Path) -> None:
        reports.write(str(file.relative_to(site)), file.read_bytes())

    if not reports.has(STYLE):
        reports.write(STYLE, (files("expectations") / "pages" / STYLE).read_bytes())
    pages = [file for file in site.rglob("*") if file.is_file() and file.relative_to(site).parts[0] != "static"]
    with ThreadPoolExecutor(MAX_CONCURRENT_READS, "reports") as pool:
        list(pool.map(copy, pages))  # raises the error of a failed copy


def _keep_newest_details(reports: Files, table: str, audit: Audit) -> str | None:
    """Remove Great Expectations' pages of this table and run except the newest, and return the path of that page.

    If the table has no rows, this audit has no page of it: all pages are removed, and None is returned.
    """
    folder = f"{VALIDATIONS}/{table}/{audit.run_id}"
    if not audit.rows[table]:
        reports.remove(folder)
        return None
    pages = [path for path in reports.below(folder) if path.endswith(".html")]
    for old_page in pages[:-1]:  # the paths are sorted by the instant of the audit
        reports.remove(str(PurePosixPath(old_page).parent))
    return pages[-1] if pages else None


def _remove_run(reports: Files, run_id: str) -> None:
    """Remove all pages of a run."""
    for table in (*load_suites(), *load_list_suites()):
        reports.remove(f"{VALIDATIONS}/{table}/{run_id}")
    reports.remove(f"{RUNS}/{run_id}")


def _write(reports: Files, path: str, text: str) -> None:
    reports.write(path, text.encode())
