"""Lineage of the ingest for a catalog: two OpenLineage runs for each published run.

`manifold.ingest` makes table snapshots from streams of the archive; `manifold.audit` makes the report on those snapshots.
Both are read from what was published, so they cover small runs as well as runs on Spark, and never uncommitted rows.
A Spark or Airflow listener would see commands and commits to branches, and nothing of a small run. If the audit holds a run
back, both are reported as failed, with the ingest's inputs, the audited tables, the broken rules, and no output tables.
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
from pipelines.ingest.branches import PINS, RUN_ID, head_of, properties_of
from pipelines.ingest.publish import PinnedSnapshot, committed_runs, pins_in
from pipelines.lineage.datasets import changed_table, dataset
from pipelines.lineage.events import Json, RunResult, end_event, facet, start_event
from pipelines.populate.snapshot_range import SnapshotRange

if TYPE_CHECKING:
    from expectations import Audit  # imports Great Expectations

log = structlog.get_logger(__name__)


def emit_lineage(catalog: Catalog, settings: Settings, run_id: str) -> bool:
    """Emit the lineage of a run; False if there is no lineage catalog or the run is not committed.

    Emitting again sends the same events with the same ids. Errors are logged, not raised: the run is published already.
    """
    if not settings.lineage_url.get_secret_value():
        return False
    try:
        ledger = catalog.load_table(SEGMENTS.identifier)
        run = next((each for each in committed_runs(ledger) if properties_of(each)[RUN_ID] == run_id), None)
        return run is not None and emit(settings, list(events(catalog, settings, run)))
    except Exception as exc:  # noqa: BLE001  # the run is committed
        log.warning("lineage of a committed run not emitted", run_id=run_id, reason=repr(exc))
        return False


def emit_held_back(catalog: Catalog, settings: Settings, run_id: str, audit: "Audit") -> bool:
    """Emit that the audit holds a run back; return whether it was emitted. Errors are logged, not raised."""
    if not settings.lineage_url.get_secret_value():
        return False
    try:
        head = head_of(catalog, SEGMENTS, run_id)
        return head is not None and PINS in properties_of(head) and emit(settings, list(_failed(catalog, settings, head, audit)))
    except Exception as exc:  # noqa: BLE001  # must not mask the audit result
        log.warning("lineage of a held-back run not emitted", run_id=run_id, reason=repr(exc))
        return False


def events(catalog: Catalog, settings: Settings, run: Snapshot) -> Iterator[Json]:
    """The events of a committed run, given its snapshot of `ingested_segments`."""
    tables = [_table(catalog, settings, pinned) for pinned in (*pins_in(run), PinnedSnapshot(SEGMENTS, run.snapshot_id))]
    yield from _events(settings, run, "ingest", _streams(catalog, settings, run), tables)
    reports, page = open_reports(settings), run_page(properties_of(run)[RUN_ID])
    if reports.has(page):
        yield from _events(settings, run, "audit", list(map(_as_input, tables)), [dataset(reports.address(page))])


def _failed(catalog: Catalog, settings: Settings, run: Snapshot, audit: "Audit") -> Iterator[Json]:
    """The events of a held-back run, given the head of its branch of `ingested_segments`. No row values are included."""
    broken: dict[str, list[Json]] = {}
    for finding in (*audit.failures, *audit.warnings):
        broken.setdefault(finding.table, []).append({"assertion": finding.rule, "success": False})
    judged = []
    for pinned in (*pins_in(run), PinnedSnapshot(SEGMENTS, run.snapshot_id)):
        table = _table(catalog, settings, pinned)
        rules = facet("1-0-1", "DataQualityAssertionsDatasetFacet", assertions=broken.get(pinned.table.name, []))
        judged.append(_as_input(table) | {"inputFacets": {"dataQualityAssertions": rules}})
    why = "; ".join(f"{f.table}: {f.rule} does not hold for {f.rows} of {f.of} rows ({f.why})" for f in audit.failures)
    why = f"held back by the audit: {why}"
    yield from _events(settings, run, "ingest", _streams(catalog, settings, run), [], why)
    yield from _events(settings, run, "audit", judged, [dataset(audit.report)], why)


def _events(
    settings: Settings, run: Snapshot, step: str, inputs: list[Json], outputs: list[Json], why_failed: str = ""
) -> Iterator[Json]:
    run_id, of = properties_of(run)[RUN_ID], settings.lineage_namespace
    at = datetime.fromtimestamp(run.timestamp_ms / 1000, UTC)
    named = RunName(of, f"manifold.{step}", run_uuid(at, f"{of}.{step}.{run_id}.{run.snapshot_id}"))
    known = facet("1-0-2", "ExternalQueryRunFacet", externalQueryId=run_id, source="manifold")
    start = start_event(settings, named, at, inputs, externalQuery=known)
    yield start
    yield end_event(start, RunResult.FAIL if why_failed else RunResult.COMPLETE, at, outputs, why_failed)


def _streams(catalog: Catalog, settings: Settings, run: Snapshot) -> list[Json]:
    """The archive's streams, with the run's file and message counts per stream from the ledger."""
    added = SnapshotRange(SEGMENTS, run.parent_snapshot_id, run.snapshot_id, 1)
    mine = where(EqualTo, "run_id", properties_of(run)[RUN_ID])
    files, messages = Counter[str](), Counter[str]()
    for row in added.read(catalog, mine, ("stream", "messages")).to_pylist():
        files[row["stream"]] += 1
        messages[row["stream"]] += row["messages"] or 0
    return [
        dataset(f"{settings.archive.rstrip('/')}/{stream}")
        | {
            "inputFacets": {
                "inputStatistics": facet(
                    "1-0-0", "InputStatisticsInputDatasetFacet", fileCount=files[stream], rowCount=messages[stream]
                )
            }
        }
        for stream in sorted(files)
    ]


def _table(catalog: Catalog, settings: Settings, pinned: PinnedSnapshot) -> Json:
    """A table as written by the run."""
    loaded = catalog.load_table(pinned.table.identifier)
    snapshot = loaded.snapshot_by_id(pinned.snapshot_id)
    return changed_table(settings, loaded, [snapshot] if snapshot else [], pinned.snapshot_id)


def _as_input(table: Json) -> Json:
    return {part: table[part] for part in ("namespace", "name", "facets")}
