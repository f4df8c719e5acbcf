"""Emits the lineage of each published run to a lineage catalog, as two OpenLineage runs.

`manifold.ingest` has streams of the archive as inputs and table snapshots as outputs; `manifold.audit` has these snapshots as
inputs and the audit report as output. Both are derived from the run's committed snapshots, so that small runs without Spark are
covered too, and uncommitted rows never are. The OpenLineage listeners of Spark and Airflow could not do this: they see commands
and commits to branches, and do not see small runs at all.

If the audit holds a run back, both are reported as failed, with the ingest's inputs, the audited tables and the broken rules,
but without output tables.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.lineage import RunName, run_uuid
from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import where
from manifold.lake.lineage import emit
from manifold.lake.reports import open_reports, run_page
from manifold.settings import Settings
from pipelines.ingest.branches import PINS, RUN_ID, PinnedSnapshot, head_of, pins_in, properties_of
from pipelines.ingest.publish import committed_runs
from pipelines.lineage.datasets import changed_table, dataset
from pipelines.lineage.events import Json, RunResult, end_event, facet, start_event
from pipelines.populate.snapshot_range import SnapshotRange

if TYPE_CHECKING:
    from expectations import Audit  # imports Great Expectations

log = structlog.get_logger(__name__)


def emit_lineage(catalog: Catalog, settings: Settings, run_id: str) -> bool:
    """Emit the lineage of a committed run. Return False if no lineage catalog is set, or the run is not committed.

    A second call for the same run sends the same events with the same ids. Errors are logged, not raised, because the run is
    already published.
    """
    if not settings.lineage_url.get_secret_value():
        return False
    try:
        ledger = catalog.load_table(SEGMENTS.identifier)
        matching = (snapshot for snapshot in committed_runs(ledger) if properties_of(snapshot)[RUN_ID] == run_id)
        run = next(matching, None)
        if run is None:
            return False
        return emit(settings, list(events(catalog, settings, run)))
    except Exception as exc:  # noqa: BLE001  # the run is committed
        log.warning("lineage of a committed run not emitted", run_id=run_id, reason=repr(exc))
        return False


def emit_held_back(catalog: Catalog, settings: Settings, run_id: str, audit: "Audit") -> bool:
    """Emit the lineage of a run that the audit holds back; return whether it was emitted. Errors are logged, not raised."""
    if not settings.lineage_url.get_secret_value():
        return False
    try:
        head = head_of(catalog, SEGMENTS, run_id)
        if head is None or PINS not in properties_of(head):
            return False  # the run was closed or begun again in the meantime, so there are no snapshots to report
        return emit(settings, list(_failed_events(catalog, settings, head, audit)))
    except Exception as exc:  # noqa: BLE001  # must not mask the audit result
        log.warning("lineage of a held-back run not emitted", run_id=run_id, reason=repr(exc))
        return False


def events(catalog: Catalog, settings: Settings, run: Snapshot) -> Iterator[Json]:
    """The events of a committed run, given its snapshot of `ingested_segments`."""
    pins = (*pins_in(run), PinnedSnapshot(SEGMENTS, run.snapshot_id))
    tables = [_output_dataset(catalog, settings, pinned) for pinned in pins]
    yield from _step_events(settings, run, "ingest", _stream_datasets(catalog, settings, run), tables)
    reports = open_reports(settings)
    page = run_page(properties_of(run)[RUN_ID])
    if reports.has(page):  # without its page, the audit has no output to name, and is left out
        inputs = [_input_dataset(table) for table in tables]
        yield from _step_events(settings, run, "audit", inputs, [dataset(reports.address(page))])


def _failed_events(catalog: Catalog, settings: Settings, run: Snapshot, audit: "Audit") -> Iterator[Json]:
    """The events of a held-back run, given the head of its branch of `ingested_segments`. No row values are included."""
    assertions: dict[str, list[Json]] = {}  # table name → broken rules
    for finding in (*audit.failures, *audit.warnings):
        assertions.setdefault(finding.table, []).append({"assertion": finding.rule, "success": False})
    audited = []
    for pinned in (*pins_in(run), PinnedSnapshot(SEGMENTS, run.snapshot_id)):
        table = _output_dataset(catalog, settings, pinned)
        rules = facet("1-0-1", "DataQualityAssertionsDatasetFacet", assertions=assertions.get(pinned.table.name, []))
        audited.append(_input_dataset(table) | {"inputFacets": {"dataQualityAssertions": rules}})
    reasons = [
        f"{failure.table}: {failure.rule} does not hold for {failure.rows} of {failure.of} rows ({failure.why})"
        for failure in audit.failures
    ]
    why = f"held back by the audit: {'; '.join(reasons)}"
    yield from _step_events(settings, run, "ingest", _stream_datasets(catalog, settings, run), [], why)
    yield from _step_events(settings, run, "audit", audited, [dataset(audit.report)], why)


def _step_events(
    settings: Settings, run: Snapshot, step: str, inputs: list[Json], outputs: list[Json], why_failed: str = ""
) -> Iterator[Json]:
    """The start and end events of a step, `ingest` or `audit`; a step with `why_failed` is reported as failed."""
    run_id = properties_of(run)[RUN_ID]
    namespace = settings.lineage_namespace
    instant = datetime.fromtimestamp(run.timestamp_ms / 1000, UTC)
    step_id = run_uuid(instant, f"{namespace}.{step}.{run_id}.{run.snapshot_id}")
    query = facet("1-0-2", "ExternalQueryRunFacet", externalQueryId=run_id, source="manifold")
    start = start_event(settings, RunName(namespace, f"manifold.{step}", step_id), instant, inputs, externalQuery=query)
    yield start
    yield end_event(start, RunResult.FAIL if why_failed else RunResult.COMPLETE, instant, outputs, why_failed)


def _stream_datasets(catalog: Catalog, settings: Settings, run: Snapshot) -> list[Json]:
    """The archive's streams that the run reads, each with the number of files and messages, from the run's ledger rows."""
    added = SnapshotRange(SEGMENTS, run.parent_snapshot_id, run.snapshot_id, rows=1)  # at least one; their number is not needed
    is_of_run = where(EqualTo, "run_id", properties_of(run)[RUN_ID])
    files, messages = Counter[str](), Counter[str]()
    for row in added.read(catalog, is_of_run, ("stream", "messages")).to_pylist():
        files[row["stream"]] += 1
        messages[row["stream"]] += row["messages"] or 0
    datasets = []
    for stream in sorted(files):
        counts = facet("1-0-0", "InputStatisticsInputDatasetFacet", fileCount=files[stream], rowCount=messages[stream])
        address = f"{settings.archive.rstrip('/')}/{stream}"
        datasets.append(dataset(address) | {"inputFacets": {"inputStatistics": counts}})
    return datasets


def _output_dataset(catalog: Catalog, settings: Settings, pinned: PinnedSnapshot) -> Json:
    """The table, at the snapshot that the run has written, as an output of the ingest."""
    loaded = catalog.load_table(pinned.table.identifier)
    snapshot = loaded.snapshot_by_id(pinned.snapshot_id)
    return changed_table(settings, loaded, [snapshot] if snapshot else [], pinned.snapshot_id)


def _input_dataset(table: Json) -> Json:
    """The output of the ingest as an input of the audit: without its output statistics."""
    return {part: table[part] for part in ("namespace", "name", "facets")}
