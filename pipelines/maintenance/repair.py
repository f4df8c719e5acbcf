"""Repairs what a check found: the lake forgets the affected segments, and ingests them again.

Forgetting is a run of its own: rows and ledger entries are removed in one commit. If the process dies afterwards, the segments
are new to the next run, which ingests them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from manifold.archive.segment import Interval, Segment
from manifold.archive.store import Archive
from manifold.contracts import tables
from manifold.settings import Settings
from pipelines.ingest.chunks import ingest_in_chunks
from pipelines.ingest.conflict_history import refused_for_their_bytes
from pipelines.ingest.delete_rows import remove_rows
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import main_snapshots
from pipelines.ingest.run import Run, new_run_id
from pipelines.lineage import emits_lineage
from pipelines.maintenance.check import Checked, Comparison, check, disagreements
from pipelines.maintenance.check_plan import REPAIRABLE, Disagreement, Found

log = structlog.get_logger(__name__)


@emits_lineage("repair", reads=["archive"])
def repair(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None
) -> Checked:
    """Ingest again the segments whose rows are wrong in the lake, and those that were never ingested; then check once more.

    Raises:
        AuditFailed: an ingested segment breaks a rule; it stays out until the cause is repaired.
        Retryable: a service was unavailable, or other runs were in the way; run it again.
    """
    findings, _, _ = disagreements(catalog, settings, now=now, interval=interval)
    archive = {segment.path: segment for segment in Archive(settings.archive, settings.s3).find({f.path for f in findings})}
    wrong = sorted({f.path for f in findings if f.trouble in REPAIRABLE and f.path in archive})
    waiting = {f.path for f in findings if f.trouble is Disagreement.WAITING}
    if wrong:
        forget(catalog, settings, [archive[path] for path in wrong], now=now)
    again = [archive[path] for path in sorted({*wrong, *waiting})]
    if again:
        ingest_in_chunks(Run(spark, catalog, settings, new_run_id(now), now, again))
    return replace(check(catalog, settings, now=now, interval=interval), repaired=len(again))


def forget(catalog: Catalog, settings: Settings, segments: Sequence[Segment], *, now: datetime) -> None:
    """Remove from ledger and tables what these segments brought, except rows that ingesting them again cannot duplicate."""
    until_not_overtaken()(lambda: _remove_from_ledger(catalog, settings, segments, now))


def _remove_from_ledger(catalog: Catalog, settings: Settings, segments: Sequence[Segment], now: datetime) -> None:
    base = main_snapshots(catalog, catalog.load_table(tables.SEGMENTS.identifier))
    run = MaintenanceRun(catalog, "repair", base, now)
    for table, named in _to_remove(catalog, Comparison(catalog, settings, base, now), segments, base):
        if named.num_rows:
            run.change(table, partial(remove_rows, catalog, table, named))
    run.publish(partial(remove_rows, catalog, tables.SEGMENTS, pa.table({"path": [segment.path for segment in segments]})))
    log.info("segments removed for re-ingestion", run_id=run.run_id, segments=len(segments))


def _to_remove(
    catalog: Catalog, comparison: Comparison, segments: Sequence[Segment], base: dict[str, int]
) -> Iterator[tuple[tables.Table, pa.Table]]:
    """Yield the rows to remove: entries and refused messages of the segments; outcomes only if duplicated.

    A payload is known by its index rows. Both stay if the payload exists once and has an index row; otherwise both go: an index
    row without its payload would keep the payload from being stored again, and a payload without one would be stored twice. But
    messages refused because their data_id had other bytes stay refused (`conflict_history`), and a payload that only they would
    bring again is not removed.
    """
    all_brought = [comparison.expected_keys(segment) for segment in segments]
    found = Found()
    for one in all_brought:
        found.add(comparison.found([one]))
    refused: set[int] = set()
    for one in all_brought:  # of a replay, the first refusals of its messages are in quarantine too: they stay
        refused |= {seq for seq in (one.refused if one.segment.is_replay else one.seqs()) if seq in found.quarantine}
    stay = refused_for_their_bytes(catalog, base, min(refused), max(refused)) if refused else set()
    bring = {data_id for one in all_brought for seq, data_id in one.data.items() if seq not in stay}
    yield tables.IDS, _named(seq=[seq for one in all_brought for seq in one.entries if found.entries[seq]])
    yield tables.QUARANTINE, _named(seq=sorted(refused - stay))
    yield tables.DATA, _named(data_id=[d for d, rows in found.data.items() if d in bring and (rows > 1 or not found.meta[d])])
    yield tables.META, _named(data_id=[d for d in found.meta if d in bring and found.data[d] != 1])
    doubled = [key for key, rows in found.outcomes.items() if rows > 1]
    yield tables.OUTCOMES, _named(vin=[vin for vin, _ in doubled], seq=[seq for _, seq in doubled])
    for table in tables.CAMPAIGN_TABLES:
        yield table, _named(seq=sorted({seq for one in all_brought for seq in one.campaigns.rows[table.name]}))
    messages = {seq for one in all_brought for seq in one.queues.messages}
    yield tables.ECQ_INDEX, _named(seq=sorted(seq for seq in messages if found.queues.messages[seq]))
    signals = sorted(seq for one in all_brought for seq in one.signals.signals)
    yield tables.XRAY_RAW, _named(seq=signals)
    yield tables.XRAY_PROCESSED, _named(seq=signals)
    yield tables.XRAY_STATUS, _named(seq=sorted(seq for one in all_brought for seq in one.signals.statuses))
    yield tables.ECQ_PAYLOAD, _named(seq=sorted(seq for seq in messages if found.queues.payloads[seq]))


def _named(*, vin: list[str] | None = None, seq: list[int] | None = None, data_id: list[str] | None = None) -> pa.Table:
    given = {"vin": (vin, pa.string()), "seq": (seq, pa.int64()), "data_id": (data_id, pa.string())}
    return pa.table({name: pa.array(values, kind) for name, (values, kind) in given.items() if values is not None})
