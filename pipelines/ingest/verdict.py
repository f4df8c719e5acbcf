"""What the audit has said already about a run. No Spark."""

import json
from datetime import datetime
from typing import Any

from pyiceberg.catalog import Catalog

from contracts.settings import Settings
from contracts.tables import SEGMENTS
from pipelines.ingest.branches import BEGAN, branch_of
from pipelines.ingest.publish import is_published


def passed_already(catalog: Catalog, settings: Settings, run_id: str) -> dict[str, Any] | None:
    """The report and the number of warnings, where this attempt at the run has passed, or the run is to write nothing.

    None: it has to be judged (again). A verdict from before the attempt began is about rows that are not there any more.
    """
    began = catalog.load_table(SEGMENTS.identifier).properties.get(BEGAN + branch_of(run_id))
    if began is None or is_published(catalog, run_id):
        return {"report": None, "warnings": 0}
    page = settings.reports_folder / "runs" / run_id
    try:
        said = json.loads((page / "audit.json").read_text())
    except OSError:
        return None
    judged_at = datetime.fromisoformat(said["as_of"])  # whole seconds
    if not said["passed"] or judged_at < datetime.fromisoformat(began).replace(microsecond=0):
        return None
    return {"report": str(page / "index.html"), "warnings": len(said["warnings"])}
