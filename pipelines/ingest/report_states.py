"""Records in the quality reports whether an audited run was published or overtaken, as the ledger says. No Spark.

The rows of `ingested_segments` have the instant at which their run began (`ingested_at`), and so have the rows of its audit
result in `quality_results` (`at`). The audited rows are published if main of the ledger has a row with that run and instant.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import where
from manifold.lake.reports import State, kept_runs, open_reports
from manifold.settings import Settings
from pipelines.ingest.branches import BEGAN, branch_of
from pipelines.ingest.ledger import pruned_before

BROKEN, ERROR = "broken", "error"  # the table's words; the package of the rules would bring Spark's library

log = structlog.get_logger(__name__)


def settle_reports(catalog: Catalog, settings: Settings) -> None:
    """Record in each undecided report whether its run was published or overtaken, if that is certain by now.

    On an error the reports keep their states, and the next run tries again.
    """
    try:
        reports = open_reports(settings)
        undecided = [run for run in kept_runs(reports) if run["state"] == State.UNDECIDED]
        if not undecided:
            return
        segments = catalog.load_table(SEGMENTS.identifier)
        states = {
            run["run_id"]: (run["at"], _state(segments, run["run_id"], datetime.fromisoformat(run["at"]))) for run in undecided
        }
        decided = {run_id: found for run_id, found in states.items() if found[1] is not State.UNDECIDED}
        if decided:
            from expectations import record_states  # imports PySpark, a second that most checks of an archive can save

            record_states(reports, decided)
    except Exception as exc:  # noqa: BLE001  # a report page is no reason to fail the run
        log.warning("report states not updated; the next run retries", reason=" ".join(str(exc).split())[:300])


def without_overtaken(catalog: Catalog, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of these rows of `quality_results`, those about runs that were published or held back.

    Messages of an overtaken run are audited again in the run that replaces it. Runs from before the ledger was pruned are kept.
    """
    if not rows:
        return []
    segments = catalog.load_table(SEGMENTS.identifier)
    since = min(row["at"] for row in rows)
    found = segments.scan(where(GreaterThanOrEqual, "ingested_at", since), ("run_id", "ingested_at")).to_arrow().to_pylist()
    counting = {(row["run_id"], row["ingested_at"]) for row in found}
    counting |= {_judgement(row) for row in rows if (row["severity"], row["outcome"]) == (ERROR, BROKEN)}
    pruned = pruned_before(segments)
    return [row for row in rows if _judgement(row) in counting or (pruned is not None and row["at"] < pruned)]


def _judgement(row: dict[str, Any]) -> tuple[str, datetime]:
    return row["run_id"], row["at"]


def _state(segments: IcebergTable, run_id: str, at: datetime) -> State:
    """The state of a run that passed its audit, by its attempt that began `at`."""
    mine = And(where(EqualTo, "run_id", run_id), where(EqualTo, "ingested_at", at))
    if segments.scan(mine, ("path",), limit=1).to_arrow().num_rows:
        return State.PUBLISHED
    branch, main = branch_of(run_id), segments.current_snapshot()
    head = segments.snapshot_by_name(branch)
    is_open = segments.properties.get(BEGAN + branch) == at.isoformat() and head is not None
    # Publication moves main from the run's base snapshot, and can no longer succeed once main has moved.
    if is_open and head is not None and main is not None and head.parent_snapshot_id == main.snapshot_id:
        return State.UNDECIDED
    return State.OVERTAKEN
