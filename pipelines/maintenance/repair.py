"""Repairs the lake after a check: removes the rows of segments with findings, and ingests these segments again.

The removal is a run of its own, which removes table rows and ledger rows in one commit. If the process dies after the removal,
the next ingest finds the segments new, and ingests them.
"""

from collections.abc import Iterator, Sequence, Set
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
from pipelines.ingest.backlog import ingest_in_runs
from pipelines.ingest.conflict_history import refused_for_their_bytes
from pipelines.ingest.delete_rows import remove_rows
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import main_snapshots
from pipelines.ingest.run import Run, new_run_id
from pipelines.lineage import emits_lineage
from pipelines.maintenance.check import Checked, check, disagreements
from pipelines.maintenance.check_plan import REPAIRABLE, Disagreement, FoundRows
from pipelines.maintenance.comparison import Comparison

log = structlog.get_logger(__name__)


@emits_lineage("repair", reads=["archive"])
def repair(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None
) -> Checked:
    """Ingest again each segment whose rows in the lake are wrong, and each segment that was never ingested. Then check again.

    Raises:
        AuditFailed: an ingested segment breaks a rule. The segment stays out of the lake until the cause is repaired.
        Retryable: a service was unavailable, or other runs were published first; run it again.
    """
    findings, _, _ = disagreements(catalog, settings, now=now, interval=interval)
    archived = Archive(settings.archive, settings.s3).find({finding.path for finding in findings})
    segment_by_path = {segment.path: segment for segment in archived}
    # A segment that the archive lacks, or has lost just now, could not be ingested again, so its rows stay.
    findings = [finding for finding in findings if finding.path in segment_by_path]
    wrong_paths = {finding.path for finding in findings if finding.trouble in REPAIRABLE}
    waiting_paths = {finding.path for finding in findings if finding.trouble is Disagreement.WAITING}
    if wrong_paths:
        forget(catalog, settings, [segment_by_path[path] for path in sorted(wrong_paths)], now=now)
    to_ingest = [segment_by_path[path] for path in sorted(wrong_paths | waiting_paths)]
    if to_ingest:
        ingest_in_runs(Run(spark, catalog, settings, new_run_id(now), now, to_ingest))
    result = check(catalog, settings, now=now, interval=interval)
    return replace(result, repaired=len(to_ingest))


def forget(catalog: Catalog, settings: Settings, segments: Sequence[Segment], *, now: datetime) -> None:
    """Remove the segments from the ledger, and their rows from the tables, so that the next ingest ingests them again.

    Rows that the next ingest would recognize as stored already may stay.
    """
    until_not_overtaken()(lambda: _remove_segments(catalog, settings, segments, now))


def _remove_segments(catalog: Catalog, settings: Settings, segments: Sequence[Segment], now: datetime) -> None:
    """Make one attempt at the removal, in a run on main as it is now."""
    base = main_snapshots(catalog, catalog.load_table(tables.SEGMENTS.identifier))
    run = MaintenanceRun(catalog, "repair", base, now)
    comparison = Comparison(catalog, settings, base, now)
    for table, keys in _keys_to_remove(catalog, comparison, segments, base):
        if keys.num_rows:  # a table without such rows is not written
            run.change(table, partial(remove_rows, catalog, table, keys))
    paths = pa.table({"path": [segment.path for segment in segments]})
    run.publish(partial(remove_rows, catalog, tables.SEGMENTS, paths))
    log.info("segments removed for re-ingestion", run_id=run.run_id, segments=len(segments))


def _keys_to_remove(
    catalog: Catalog, comparison: Comparison, segments: Sequence[Segment], base: dict[str, int]
) -> Iterator[tuple[tables.Table, pa.Table]]:
    """Yield each table with the keys of the rows to remove from it.

    Outcomes are removed only if they are doubled, because ingest recognizes stored outcomes; payloads as `_payload_keys` says;
    states and sequence numbers of compacted queues never, because repeated ones change no result. All other rows of the segments
    are removed.

    Messages that were refused because their data_id had other bytes stay refused (`conflict_history`). A payload that only such
    messages have is not removed, because no ingest would store it again.
    """
    expected_of_segments = [comparison.expected_keys(segment) for segment in segments]
    found = FoundRows()
    refused: set[int] = set()
    for expected in expected_of_segments:
        found.add(comparison.find_rows([expected]))
        # A replayed message may also have a row of its first refusal, from another segment. That row must stay.
        candidates = expected.refused if expected.segment.is_replay else expected.seqs()
        refused |= {seq for seq in candidates if seq in found.quarantine}
    stay_refused = refused_for_their_bytes(catalog, base, min(refused), max(refused)) if refused else set()
    data_ids = {data_id for expected in expected_of_segments for seq, data_id in expected.data.items() if seq not in stay_refused}
    doubled_outcomes = [key for key, rows in found.outcomes.items() if rows > 1]
    queue_seqs = {seq for expected in expected_of_segments for seq in expected.queues.messages}
    signal_seqs = sorted(seq for expected in expected_of_segments for seq in expected.signals.signals)
    status_seqs = sorted(seq for expected in expected_of_segments for seq in expected.signals.statuses)

    entry_seqs = [seq for expected in expected_of_segments for seq in expected.entries if found.entries[seq]]
    yield tables.IDS, _keys(seq=entry_seqs)
    yield tables.QUARANTINE, _keys(seq=sorted(refused - stay_refused))
    yield from _payload_keys(found, data_ids)
    yield tables.OUTCOMES, _keys(vin=[vin for vin, _ in doubled_outcomes], seq=[seq for _, seq in doubled_outcomes])
    for table in tables.CAMPAIGN_TABLES:
        yield table, _keys(seq=sorted({seq for expected in expected_of_segments for seq in expected.campaigns.rows[table.name]}))
    yield tables.ECQ_INDEX, _keys(seq=sorted(seq for seq in queue_seqs if found.queues.messages[seq]))
    yield tables.XRAY_RAW, _keys(seq=signal_seqs)
    yield tables.XRAY_PROCESSED, _keys(seq=signal_seqs)
    yield tables.XRAY_STATUS, _keys(seq=status_seqs)
    yield tables.ECQ_PAYLOAD, _keys(seq=sorted(seq for seq in queue_seqs if found.queues.payloads[seq]))


def _payload_keys(found: FoundRows, data_ids: Set[str]) -> Iterator[tuple[tables.Table, pa.Table]]:
    """Yield the keys of the payloads among `data_ids` to remove, and of their rows in the index (META).

    Ingest stores a payload only if its data_id has no row in the index. So payload and index row stay if there is exactly one
    payload and an index row. Otherwise both are removed: an index row alone would keep the payload from being stored again, and
    a payload alone would be stored a second time.
    """
    wrong_payloads = [
        data_id for data_id, rows in found.data.items() if data_id in data_ids and (rows > 1 or not found.meta[data_id])
    ]
    yield tables.DATA, _keys(data_id=wrong_payloads)
    wrong_index_rows = [data_id for data_id in found.meta if data_id in data_ids and found.data[data_id] != 1]
    yield tables.META, _keys(data_id=wrong_index_rows)


def _keys(*, vin: list[str] | None = None, seq: list[int] | None = None, data_id: list[str] | None = None) -> pa.Table:
    """A table of keys with the given columns; columns that are None are left out."""
    columns = {"vin": (vin, pa.string()), "seq": (seq, pa.int64()), "data_id": (data_id, pa.string())}
    return pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items() if values is not None})
