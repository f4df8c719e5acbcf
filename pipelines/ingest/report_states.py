"""Records in the quality reports whether an audited run was published, or overtaken by a run that was published first. No Spark.

Each attempt at a run has its own instant. It is in the attempt's rows of `ingested_segments` (`ingested_at`) and in the rows of
its audit result in `quality_results` (`at`). The attempt is published if main of `ingested_segments` has a row with the same run
id and instant.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import SEGMENTS, RuleOutcome, Severity
from manifold.lake.catalog import where
from manifold.lake.reports import State, kept_runs, open_reports
from manifold.settings import Settings
from pipelines.ingest.branches import BEGAN, branch_of
from pipelines.ingest.ledger import pruned_before

log = structlog.get_logger(__name__)


def update_report_states(catalog: Catalog, settings: Settings) -> None:
    """Record in each undecided report whether its run was published or overtaken, as far as this is certain by now.

    If an error occurs, the reports keep their states, and the next run tries again.
    """
    try:
        reports = open_reports(settings)
        undecided = [run for run in kept_runs(reports) if run["state"] == State.UNDECIDED]
        if not undecided:
            return
        segments = catalog.load_table(SEGMENTS.identifier)
        decided: dict[str, tuple[str, State]] = {}
        for run in undecided:
            state = _state(segments, run["run_id"], datetime.fromisoformat(run["at"]))
            if state is not State.UNDECIDED:
                decided[run["run_id"]] = (run["at"], state)
        if decided:
            from expectations import record_states  # imported here because it imports PySpark, which takes a second

            record_states(reports, decided)
    except Exception as exc:  # noqa: BLE001  # a report page is no reason to fail the run
        log.warning("states in quality reports not updated; the next run retries", reason=" ".join(str(exc).split())[:300])


def without_overtaken(catalog: Catalog, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the rows of `quality_results` about overtaken attempts; rows about published or held-back runs stay.

    The messages of an overtaken attempt are audited again in the next attempt. Rows about attempts that began before the complete
    part of the ledger (`pruned_before`) all stay, because the ledger does not tell what became of these attempts.
    """
    if not rows:
        return []
    segments = catalog.load_table(SEGMENTS.identifier)
    earliest = min(row["at"] for row in rows)
    is_recent = where(GreaterThanOrEqual, "ingested_at", earliest)
    ledger_rows = segments.scan(is_recent, ("run_id", "ingested_at")).to_arrow()
    published = {(row["run_id"], row["ingested_at"]) for row in ledger_rows.to_pylist()}
    broken_errors = [row for row in rows if row["severity"] == Severity.ERROR and row["outcome"] == RuleOutcome.BROKEN]
    held_back = {_attempt_of(row) for row in broken_errors}
    complete_from = pruned_before(segments)

    def is_kept(row: dict[str, Any]) -> bool:
        is_before_ledger = complete_from is not None and row["at"] < complete_from
        return is_before_ledger or _attempt_of(row) in published or _attempt_of(row) in held_back

    return [row for row in rows if is_kept(row)]


def _attempt_of(row: dict[str, Any]) -> tuple[str, datetime]:
    """The attempt that the row of `quality_results` is about: run id and instant."""
    return row["run_id"], row["at"]


def _state(segments: IcebergTable, run_id: str, began_at: datetime) -> State:
    """The state of the attempt at a run that began at `began_at` and passed its audit."""
    is_of_attempt = And(where(EqualTo, "run_id", run_id), where(EqualTo, "ingested_at", began_at))
    if segments.scan(is_of_attempt, ("path",), limit=1).to_arrow().num_rows:
        return State.PUBLISHED
    branch = branch_of(run_id)
    main = segments.current_snapshot()
    head = segments.snapshot_by_name(branch)
    is_open = segments.properties.get(BEGAN + branch) == began_at.isoformat()
    # Publication moves main from the run's base snapshot, so it can succeed only while main is at that snapshot.
    if is_open and head is not None and main is not None and head.parent_snapshot_id == main.snapshot_id:
        return State.UNDECIDED
    return State.OVERTAKEN
