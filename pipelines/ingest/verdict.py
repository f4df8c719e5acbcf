"""What the audit has said already about a run: by the rows of `quality_results`, which every worker can read. No Spark."""

from datetime import datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual

from adapters.lake import where
from adapters.reports import open_reports, run_page
from contracts.settings import Settings
from contracts.tables import QUALITY, SEGMENTS
from pipelines.ingest.branches import BEGAN, branch_of
from pipelines.ingest.publish import counts

BROKEN, ERROR = "broken", "error"  # the table's words; the package of the rules would bring Spark's library


def passed_already(catalog: Catalog, settings: Settings, run_id: str) -> dict[str, Any] | None:
    """The report and the number of warnings, where this attempt at the run has passed, or the run is to write nothing.

    None: it has to be judged (again). A verdict from before the attempt began is about rows that are not there any more.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    began = segments.properties.get(BEGAN + branch_of(run_id))
    if began is None or counts(segments, run_id):
        return {"report": None, "warnings": 0}
    mine = And(where(EqualTo, "run_id", run_id), where(GreaterThanOrEqual, "at", datetime.fromisoformat(began)))
    columns = ("severity", "outcome", "at")
    rows = catalog.load_table(QUALITY.identifier).scan(mine, columns).to_arrow().to_pylist()
    newest = max((row["at"] for row in rows), default=None)
    broken = [row["severity"] for row in rows if row["at"] == newest and row["outcome"] == BROKEN]
    if newest is None or ERROR in broken:
        return None
    return {"report": open_reports(settings).address(run_page(run_id)), "warnings": len(broken)}
