"""Writes new segments of the archive to the run's branches, the first part of the stage `ingest`. Main is unchanged."""

from collections.abc import Callable, Mapping

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import LessThan
from pyspark.sql import DataFrame

from manifold.archive.probing import Probe
from manifold.archive.segment import Segment
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import IDS, QUARANTINE, SEGMENTS
from manifold.lake.catalog import ensure_tables, where
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import RESULT, RUN_ID, branch_of, drop_abandoned, drop_branches, open_run, properties_of
from pipelines.ingest.planning import SIGNALS, Offenders, Plan, make_plan
from pipelines.ingest.publish import finish_committed_runs, is_published
from pipelines.ingest.reading import Source, source_of
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.transforms import one_row_per_key, union_of
from pipelines.ingest.write_campaigns import write_answers, write_campaigns
from pipelines.ingest.write_ecq import write_ecq
from pipelines.ingest.write_outcomes import write_outcomes
from pipelines.ingest.write_payloads import write_payloads
from pipelines.ingest.write_signals import write_signals, write_status
from pipelines.ingest.write_triggers import write_triggers

OPTIONAL_STREAMS = (*SIGNALS, Stream.CAMPAIGN, Stream.ANSWER)  # many lakes never get messages of these streams
# Streams whose rows depend on no other stream, each with the function that writes them.
INDEPENDENT_STREAMS: Mapping[Stream, Callable[[Attempt, Source, list[DataFrame]], None]] = {
    Stream.ECQ: write_ecq,
    Stream.CAMPAIGN: write_campaigns,
    Stream.ANSWER: write_answers,
    Stream.XRAY_RAW: write_signals,
    Stream.XRAY_STATUS: write_status,
}

log = structlog.get_logger(__name__)


def ingest(run: Run, offenders: Offenders | None = None) -> Ingested:
    """Write the new segments to the run's branches, and refuse the messages and files in `offenders`.

    New segments are those in the run's part of the archive that no run has ingested. The branches of an earlier attempt at this
    run are dropped first.

    Raises:
        Retryable: another process is working on the same run. Neither process has published rows of the run.
    """
    if older := ensure_tables(run.catalog):
        log.warning(
            "tables were made by an earlier release; queries of them may be slower", tables=older, remedy="manifold lake migrate"
        )
    plan = begin(run, offenders)
    if plan is not None:
        return _write(Attempt(run, plan.base), plan)
    # Nothing was written now: an earlier attempt at the run is already committed, or no segment is new.
    if is_published(run.catalog, run.run_id, run.now):
        return written_result(run.catalog, run.run_id)
    return Ingested(run.run_id)


def begin(run: Run, offenders: Offenders | None = None) -> Plan | None:
    """Open the run and return its plan; return None if no segment is new or the run is already committed.

    The branches of an earlier attempt at this run are dropped first.
    """
    catalog, run_id, now = run.catalog, run.run_id, run.now
    finish_committed_runs(catalog)
    if is_published(catalog, run_id, now):
        log.info("run already committed", run_id=run_id)
        return None
    drop_branches(catalog, branch_of(run_id))
    for branch in drop_abandoned(catalog, now):
        log.warning("branches of an abandoned run dropped", branch=branch)
    plan = make_plan(catalog, run.archive, run.part, offenders)
    if not plan.segments:
        log.info("no new segments in this part of the archive", run_id=run_id)
        return None
    open_run(catalog, run_id, plan.base[SEGMENTS.name], now)
    return plan


def written_result(catalog: Catalog, run_id: str) -> Ingested:
    """The counts of a run, published or not, from its snapshot of `ingested_segments`; all zero without such a snapshot."""
    for snapshot in reversed(catalog.load_table(SEGMENTS.identifier).snapshots()):  # newest first
        properties = properties_of(snapshot)
        if properties.get(RUN_ID) == run_id and RESULT in properties:
            return Ingested.from_json(properties[RESULT])
    return Ingested(run_id)


def _write(attempt: Attempt, plan: Plan) -> Ingested:
    """Write all streams of the plan, then quarantine, then `ingested_segments`."""
    refused: list[DataFrame] = []  # rows for quarantine
    has_inline_data = write_triggers(attempt, plan, refused)
    conflicting_seqs: list[int] = []
    if has_inline_data or plan.segments_of(Stream.DATA):
        conflicting_seqs = write_payloads(attempt, plan, refused)
    if conflicting_seqs:  # rare: the inline data of a trigger has a data_id that was published with other bytes
        attempt.undo(IDS)  # to write the entries again, without those of these triggers
        # The refused triggers are already in `refused`, so the second call's list of them is dropped.
        write_triggers(attempt, plan, refused=[], excluding=conflicting_seqs)
    write_outcomes(attempt, plan, refused)
    for stream, write_stream in INDEPENDENT_STREAMS.items():
        if plan.segments_of(stream):
            write_stream(attempt, source_of(attempt, plan, stream), refused)
    if refused:
        attempt.append(QUARANTINE, one_row_per_key(union_of(refused), QUARANTINE.key))
    return _write_ledger(attempt, plan)


def _write_ledger(attempt: Attempt, plan: Plan) -> Ingested:
    """Write the run's rows of `ingested_segments`, after all other tables, and return the run's counts."""
    reported_streams = [stream for stream in Stream if stream not in OPTIONAL_STREAMS or plan.segments_of(stream)]
    written = attempt.written | {SEGMENTS.name: len(plan.segments)}
    result = Ingested(
        attempt.run_id,
        segments=len(plan.segments),
        read={stream.value: plan.message_count(stream) for stream in reported_streams},
        skipped=sum(len(seqs) for seqs in plan.skips.values()),
        written=written,
        refused=written.get(QUARANTINE.name, 0),
    )
    refusals = _refused_files(attempt)
    rows = [segment_row(attempt, plan.probes[segment.path], segment, refusals.get(segment.path)) for segment in plan.segments]
    attempt.append_to_ledger(pa.Table.from_pylist(rows, schema=SEGMENTS.arrow_schema), result)
    log.info(
        "run written to its branches, not yet published",
        run_id=result.run_id,
        segments=result.segments,
        messages_read=result.read,
        messages_skipped=result.skipped,
        rows_written=result.written,
        rows_refused=result.refused,
    )
    return result


def _refused_files(attempt: Attempt) -> dict[str, str]:
    """Path → reason of each file that this run refused because it is not a valid segment.

    In quarantine, only the rows of such files have a negative seq; their column `topic` holds the path.
    """
    if QUARANTINE.name not in attempt.snapshots:
        return {}
    table = attempt.catalog.load_table(QUARANTINE.identifier)
    snapshot_id = attempt.snapshots[QUARANTINE.name]
    rows = table.scan(where(LessThan, "seq", 0), ("topic", "reason"), snapshot_id=snapshot_id).to_arrow()
    return dict(zip(rows["topic"].to_pylist(), rows["reason"].to_pylist(), strict=True))


def segment_row(attempt: Attempt, probe: Probe, segment: Segment, refused_because: str | None) -> dict[str, object]:
    """The row of `ingested_segments` for a segment; a refused file has no messages and no seqs."""
    if refused_because is not None:
        probe = Probe()  # the probe of an empty segment
    return {
        "path": segment.path,
        "stream": segment.stream.value,
        "messages": probe.messages,
        "first_seq": probe.first_seq,
        "last_seq": probe.last_seq,
        "run_id": attempt.run_id,
        "ingested_at": attempt.now,
        "refused_because": refused_because,
        "began_at": segment.began_at,
    }
