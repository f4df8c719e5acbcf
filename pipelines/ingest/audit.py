"""Audits a run between writing and publishing: `python -m pipelines audit --run-id …`."""

from datetime import timedelta
from functools import partial

import structlog

from expectations import Audit, audit
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import SEGMENTS
from manifold.lake.reports import open_reports
from pipelines.ingest.audit_result import append_audit_result
from pipelines.ingest.branches import RUN_ID, head_of, properties_of
from pipelines.ingest.publish import PinnedSnapshot, is_committed, pins_in
from pipelines.ingest.run import Run
from pipelines.ingest.spark_audit import ReferenceTables, added, has_rows

log = structlog.get_logger(__name__)


class AuditFailed(Permanent):
    """The run breaks rules of severity `error`. It stays on its branches, and main is unchanged."""

    def __init__(self, result: Audit) -> None:
        super().__init__("\n".join([str(result), *map(str, result.failures)]))
        self.result = result


def audit_run(run: Run) -> Audit | None:
    """Audit what the run has written; None if it wrote nothing or is already published.

    Raises:
        AuditFailed: the run must not be published; the message names the broken rules and some of the rows.
    """
    catalog, settings, run_id = run.catalog, run.settings, run.run_id
    head = head_of(catalog, SEGMENTS, run_id)
    if head is None or properties_of(head).get(RUN_ID) != run_id or is_committed(catalog.load_table(SEGMENTS.identifier), run_id):
        log.info("nothing to audit", run_id=run_id)
        return None
    written = [pinned for pinned in (*pins_in(head), PinnedSnapshot(SEGMENTS, head.snapshot_id)) if has_rows(catalog, pinned)]
    frames = {pinned.table.name: added(run, pinned) for pinned in written}
    result = audit(
        frames,
        run_id=run_id,
        as_of=run.now,
        reports=open_reports(settings),
        keep=settings.report_max,
        references=ReferenceTables(run, written, frames),
        data_wait=timedelta(seconds=settings.data_wait_seconds),
        keep_results=partial(append_audit_result, catalog, head),
    )
    for warning in result.warnings:
        log.warning("run breaks a rule", run_id=run_id, rule=str(warning))
    if not result.passed:
        raise AuditFailed(result)
    log.info("run audited", run_id=run_id, passed=result.passed, warnings=len(result.warnings), report=str(result.report))
    return result
