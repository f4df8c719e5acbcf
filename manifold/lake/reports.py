"""The store of the quality reports: which reports exist, and the path of each. Needs no Spark.

index.html                  every run, newest first; a stable address
trends.html                 rows and broken rules over time, as charts of `quality_results`
trends.json                 the version of `quality_results` that the charts show
runs/<run>/index.html       one run: its state, findings with sample rows, links
runs/<run>/audit.json       the same for programs
runs/<run>/results/        Great Expectations' validation results, a JSON file per table
validations/<table>/<run>/  Great Expectations' own pages
expectations/<table>.html   the rules of one table, as Great Expectations words them
static/                     the style sheet of Great Expectations' pages
campaigns/<campaign>/       proof of a campaign, and its targets as CSV
queues/<instant>/           differences between queues and lake (`manifold verify`)
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any

from manifold.lake.files import Files
from manifold.settings import Settings

INDEX, TRENDS, RUNS, VALIDATIONS, QUEUES = "index.html", "trends.html", "runs", "validations", "queues"
TRENDS_VERSION = "trends.json"
AUDIT = "audit.json"
STYLE = "static/bootstrap-4.6.2.min.css"  # with the version in the name, pages of an earlier release keep their style sheet
MAX_CONCURRENT_READS = 16  # concurrent, because an object store takes a round trip for each file


class State(StrEnum):
    """State of an audited run."""

    UNDECIDED = "not decided"  # the run has passed the audit, and is not published yet
    PUBLISHED = "published"
    OVERTAKEN = "overtaken"  # another run was published first, so no row of this run is in main
    HELD_BACK = "held back"  # the run breaks a rule of severity error


def open_reports(settings: Settings) -> Files:
    """The store of the reports, by the setting `reports`."""
    return Files(settings.reports_url, settings.s3)


def run_page(run_id: str) -> str:
    """The path in the store of one run's page."""
    return f"{RUNS}/{run_id}/{INDEX}"


def validation_result(run_id: str, table: str) -> str:
    """The path in the store of Great Expectations' validation result of one table in one run, in its own JSON."""
    return f"{RUNS}/{run_id}/results/{table}.json"


def audit_result_path(run_id: str) -> str:
    """The path in the store of the audit result of one run, a JSON file for programs."""
    return f"{RUNS}/{run_id}/{AUDIT}"


def kept_runs(reports: Files) -> list[dict[str, Any]]:
    """The audit results in the store, each with the `state` of its run, newest run first."""
    paths = [path for path in reports.below(RUNS) if path.endswith(f"/{AUDIT}")]
    with ThreadPoolExecutor(MAX_CONCURRENT_READS, "reports") as pool:
        runs = list(_audit_results(pool.map(reports.read, paths)))
    return sorted(runs, key=lambda run: (run["as_of"], run["run_id"]), reverse=True)


def charts_version(reports: Files) -> str | None:
    """The version of `quality_results` that the charts show (`quality.version_of_results`); None if none is recorded."""
    try:
        recorded = json.loads(reports.read(TRENDS_VERSION) or b"{}")
    except ValueError:  # damaged: the charts are redrawn, and their version is recorded anew
        return None
    return recorded.get("version") if isinstance(recorded, dict) else None


def record_charts_version(reports: Files, version: str) -> None:
    """Record the version of `quality_results` that the charts show. Call this after the charts are written."""
    reports.write(TRENDS_VERSION, json.dumps({"version": version}).encode())


def _audit_results(contents: Iterator[bytes | None]) -> Iterator[dict[str, Any]]:
    """Decode the contents of audit files; None stands for a file that was removed after it was listed."""
    for content in contents:
        if content is not None:
            run: dict[str, Any] = json.loads(content)
            default_state = State.PUBLISHED if run["passed"] else State.HELD_BACK  # earlier releases recorded no state
            yield {"state": default_state} | run  # a recorded state takes precedence
