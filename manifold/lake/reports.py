"""The quality reports in their store: which exist, and the path of each. Reading one needs no Spark.

index.html                  every run, newest first; a stable address
trends.html                 rows and broken rules over time, as charts of `quality_results`
trends.json                 the version of that table that they show
runs/<run>/index.html       one run: its state, findings with sample rows, links
runs/<run>/audit.json       the same for programs
runs/<run>/results/        Great Expectations' validation results, a JSON file per table
validations/<table>/<run>/  Great Expectations' own pages
expectations/<table>.html   the rules of one table, as Great Expectations words them
static/                     the style sheet of Great Expectations' pages
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
TRENDS_OF = "trends.json"
AUDIT = "audit.json"
STYLE = "static/bootstrap-4.6.2.min.css"  # the name has the version: pages of an earlier release keep theirs
MAX_CONCURRENT_READS = 16  # an object store takes its time for each


class State(StrEnum):
    """State of an audited run."""

    UNDECIDED = "not decided"  # it has passed, and is not published yet
    PUBLISHED = "published"
    OVERTAKEN = "overtaken"  # another run was published first, and none of its rows are in main
    HELD_BACK = "held back"  # it breaks a rule of severity error


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
    """The audit results of the runs that are kept, each with its `state`, newest first."""
    paths = [path for path in reports.below(RUNS) if path.endswith(f"/{AUDIT}")]
    with ThreadPoolExecutor(MAX_CONCURRENT_READS, "reports") as pool:
        return sorted(_whole(pool.map(reports.read, paths)), key=lambda run: (run["as_of"], run["run_id"]), reverse=True)


def drawn_version(reports: Files) -> str | None:
    """The version of `quality_results` that the charts show (`quality.version_of_results`); None if there are no charts."""
    try:
        found = json.loads(reports.read(TRENDS_OF) or b"{}")
    except ValueError:
        return None
    return found.get("version") if isinstance(found, dict) else None


def note_drawn(reports: Files, version: str) -> None:
    """Record the version that the charts show, after they are written."""
    reports.write(TRENDS_OF, json.dumps({"version": version}).encode())


def _whole(contents: Iterator[bytes | None]) -> Iterator[dict[str, Any]]:
    """Yield the audit results that were not removed in the meantime. Earlier releases recorded no state."""
    for content in contents:
        if content is not None:
            run: dict[str, Any] = json.loads(content)
            yield {"state": State.PUBLISHED if run["passed"] else State.HELD_BACK} | run
