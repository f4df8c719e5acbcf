"""Audits a written run with Great Expectations, keeps the result in the table `quality_results`, and answers questions about it.

An audit result belongs to one attempt at a run. The snapshot that holds the result names the attempt in its properties. Whether
a run may be published is never decided by timestamps, because worker clocks differ: a result from a slow clock would be missed,
and a result from a fast clock would be applied to rows written after it. Reports and charts, which only show results, match them
with the rows of the ledger by the attempt's instant.

The stages `audit` and `publish` only ask for results, so this module imports Spark and Great Expectations only in `audit_run`.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.errors import Permanent
from manifold.contracts.tables import QUALITY, SEGMENTS, RuleOutcome, Severity
from manifold.lake.catalog import where
from manifold.lake.commits import append_rows
from manifold.lake.reports import open_reports, run_page
from manifold.settings import Settings
from pipelines.ingest.branches import (
    ATTEMPT,
    BEGAN,
    RUN_ID,
    PinnedSnapshot,
    ancestors,
    branch_of,
    head_of,
    pins_in,
    properties_of,
)
from pipelines.ingest.publish import is_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from expectations import Audit
    from pipelines.ingest.run import Run

# Read options. With the default splits of 128 MiB, all rows of a run would usually be one split, audited by one task, because
# files are compressed tenfold.
SMALL_SPLITS = {"split-size": str(8 << 20), "file-open-cost": str(1 << 20)}
# Snapshot properties of `quality_results`.
AUDITED_AT = "manifold.judged-at"  # the value of the column `at` in the rows of this result
PASSED = "manifold.passed"  # "true" if the attempt may be published

log = structlog.get_logger(__name__)


class AuditFailed(Permanent):
    """The run breaks rules of severity `error`. The run's rows stay on its branches, and main is unchanged."""

    def __init__(self, result: "Audit") -> None:
        super().__init__("\n".join([str(result), *map(str, result.failures)]))
        self.result = result


def audit_run(run: "Run") -> "Audit | None":
    """Audit the rows that the run has written; return None if it wrote none or is already published.

    Raises:
        AuditFailed: the run must not be published; the message names the broken rules and some of the rows.
    """
    from expectations import audit, results_of
    from pipelines.ingest.audit_references import ReferenceTables

    catalog, settings, run_id = run.catalog, run.settings, run.run_id
    head = head_of(catalog, SEGMENTS, run_id)
    is_written = head is not None and properties_of(head).get(RUN_ID) == run_id
    if head is None or not is_written or is_committed(catalog.load_table(SEGMENTS.identifier), run_id):
        log.info("nothing to audit: no rows of the run are on its branches, or it is already committed", run_id=run_id)
        return None
    pins = (*pins_in(head), PinnedSnapshot(SEGMENTS, head.snapshot_id))
    all_counts = {pinned.table.name: added_count(catalog, pinned) for pinned in pins}
    counts = {name: count for name, count in all_counts.items() if count}  # a table without new rows is not audited
    written = [pinned for pinned in pins if pinned.table.name in counts]
    frames = {pinned.table.name: added_rows(run, pinned) for pinned in written}
    result = audit(
        frames,
        run_id=run_id,
        as_of=run.now,
        reports=open_reports(settings),
        keep=settings.report_max,
        references=ReferenceTables(run, written, frames),
        data_wait=timedelta(seconds=settings.data_wait_seconds),
        counts=counts,
    )
    append_audit_result(catalog, head, results_of(result, run.now))
    for warning in result.warnings:
        log.warning("run breaks a rule of severity warning", run_id=run_id, rule=str(warning))
    if not result.passed:
        raise AuditFailed(result)
    log.info("run passed its audit", run_id=run_id, warnings=len(result.warnings), report=str(result.report))
    return result


def added_count(catalog: Catalog, pinned: PinnedSnapshot) -> int:
    """The number of rows that the run's snapshot adds to the table, according to the snapshot's summary."""
    snapshot = catalog.load_table(pinned.table.identifier).snapshot_by_id(pinned.snapshot_id)
    assert snapshot is not None  # the snapshot is the head of a branch, or pinned by the head of a branch
    return int(properties_of(snapshot).get("added-records", "0"))


def added_rows(run: "Run", pinned: PinnedSnapshot) -> "DataFrame":
    """The rows that the run's snapshot adds to the table."""
    table, snapshot_id = pinned.table, pinned.snapshot_id
    snapshot = run.catalog.load_table(table.identifier).snapshot_by_id(snapshot_id)
    assert snapshot is not None  # the snapshot is the head of a branch, or pinned by the head of a branch
    snapshot_range = {"start-snapshot-id": str(snapshot.parent_snapshot_id), "end-snapshot-id": str(snapshot_id)}
    return run.spark.read.options(**snapshot_range, **SMALL_SPLITS).table(f"{run.settings.catalog_name}.{table.identifier}")


def append_audit_result(catalog: Catalog, audited: Snapshot, rows: pa.Table) -> None:
    """Append the rows of an audit result to `quality_results`.

    `audited` is the audited run's snapshot of `ingested_segments`. Its run id and attempt become properties of the new snapshot.
    """
    properties = {name: value for name, value in properties_of(audited).items() if name in (RUN_ID, ATTEMPT)}
    is_failure = pc.and_(pc.equal(rows["severity"], Severity.ERROR.value), pc.equal(rows["outcome"], RuleOutcome.BROKEN.value))
    properties[PASSED] = "false" if pc.any(is_failure).as_py() else "true"
    if rows.num_rows:
        properties[AUDITED_AT] = rows["at"][0].as_py().isoformat()  # all rows have the same instant
    append_rows(catalog, QUALITY, rows, properties)


def may_be_published(catalog: Catalog, written: Snapshot) -> bool:
    """Whether the attempt that wrote this snapshot of `ingested_segments` has passed its newest audit; False without an audit.

    The attempt is compared as well as the run id, because two processes may work on the same run: while one audits its attempt,
    the other may replace that attempt. Only snapshot properties are read.
    """
    run_properties = properties_of(written)
    for snapshot in ancestors(catalog.load_table(QUALITY.identifier)):
        result = properties_of(snapshot)
        is_same_attempt = all(result.get(name) == run_properties.get(name) for name in (RUN_ID, ATTEMPT))
        if PASSED in result and is_same_attempt:
            return result[PASSED] == "true"
    return False


def passed_already(catalog: Catalog, settings: Settings, run_id: str) -> dict[str, Any] | None:
    """Return the report's address and the number of warnings if the run has passed its audit or has nothing to publish.

    Otherwise, return None: the current attempt must be audited. Results of earlier attempts do not count, because the rows of
    those attempts no longer exist.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    if BEGAN + branch_of(run_id) not in segments.properties or is_committed(segments, run_id):
        return {"report": None, "warnings": 0}  # nothing to publish: the run is committed, was closed, or has not begun
    rows = _newest_result(catalog, run_id)
    severities = [row["severity"] for row in rows if row["outcome"] == RuleOutcome.BROKEN]
    if not rows or Severity.ERROR in severities:
        return None
    return {"report": open_reports(settings).address(run_page(run_id)), "warnings": len(severities)}


def why_held_back(catalog: Catalog, settings: Settings, run_id: str) -> str:
    """Explain why a run that has not passed its audit must not be published, and name the remedy."""
    rows = _newest_result(catalog, run_id)
    failures = [row for row in rows if row["outcome"] == RuleOutcome.BROKEN and row["severity"] == Severity.ERROR]
    if not failures:
        return f"the current attempt at run {run_id} has not been audited: clear its task `ingest`"
    failures.sort(key=lambda row: (row["suite"], row["rule"]))
    report = open_reports(settings).address(run_page(run_id))
    summary = (
        f"run {run_id} is held back by {len(failures)} rules; report {report}; repair the cause, then clear its task `ingest`"
    )
    template = "{suite}: {rule} does not hold for {unexpected} of {judged} rows; for example {sample}"
    return "\n".join([summary, *(template.format_map(row) for row in failures)])


def _newest_result(catalog: Catalog, run_id: str) -> list[dict[str, Any]]:
    """The rows of the newest audit result for the attempt on the run's branches; empty if that attempt was not audited."""
    audited_at = _audited_at(catalog, run_id)
    if audited_at is None:
        return []
    is_of_result = And(where(EqualTo, "run_id", run_id), where(EqualTo, "at", audited_at))
    rows: list[dict[str, Any]] = catalog.load_table(QUALITY.identifier).scan(is_of_result).to_arrow().to_pylist()
    return rows


def _audited_at(catalog: Catalog, run_id: str) -> datetime | None:
    """The instant of the newest audit result for the attempt on the run's branches; None if that attempt was not audited."""
    head = head_of(catalog, SEGMENTS, run_id)
    written = properties_of(head) if head is not None else {}
    if written.get(RUN_ID) != run_id or ATTEMPT not in written:
        return None  # the run is open, and its snapshot of `ingested_segments`, which is written last, does not exist yet
    for snapshot in ancestors(catalog.load_table(QUALITY.identifier)):
        properties = properties_of(snapshot)
        if (properties.get(RUN_ID), properties.get(ATTEMPT)) == (run_id, written[ATTEMPT]) and AUDITED_AT in properties:
            return datetime.fromisoformat(properties[AUDITED_AT])
    return None
