"""Closes a run: writes its rows of `ingested_segments` and its counts. `write.begin` opens it."""

from dataclasses import asdict

import pyarrow as pa
import structlog
from pyiceberg.expressions import LessThan

from manifold.archive.probing import Probe
from manifold.archive.segment import Segment
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import QUARANTINE, SEGMENTS
from manifold.lake.catalog import where
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.planning import SIGNALS, Plan
from pipelines.ingest.run import Ingested

SELDOM = (*SIGNALS, Stream.CAMPAIGN, Stream.ANSWER)  # streams that many lakes never get

log = structlog.get_logger(__name__)


def close_segments(attempt: Attempt, plan: Plan) -> Ingested:
    """Write the run's rows of `ingested_segments`, last of all, and return its counts."""
    read = {stream.value: plan.messages(stream) for stream in Stream if stream not in SELDOM or plan.of(stream)}
    written = attempt.written | {SEGMENTS.name: len(plan.segments)}
    skipped = sum(map(len, plan.skips.values()))
    result = Ingested(attempt.run_id, len(plan.segments), read, skipped, written, written.get(QUARANTINE.name, 0))
    refused = _refused_files(attempt)
    rows = [segment_row(attempt, plan.probes[segment.path], segment, refused.get(segment.path)) for segment in plan.segments]
    attempt.close(pa.Table.from_pylist(rows, schema=SEGMENTS.arrow_schema), result, plan.base[SEGMENTS.name])
    log.info("run written, not yet published", **asdict(result))
    return result


def _refused_files(attempt: Attempt) -> dict[str, str]:
    """By path, why this run refused files that are not valid segments. Only their quarantine rows have a negative seq."""
    if QUARANTINE.name not in attempt.snapshots:
        return {}
    table, snapshot_id = attempt.catalog.load_table(QUARANTINE.identifier), attempt.snapshots[QUARANTINE.name]
    rows = table.scan(where(LessThan, "seq", 0), ("topic", "reason"), snapshot_id=snapshot_id).to_arrow()
    return dict(zip(rows["topic"].to_pylist(), rows["reason"].to_pylist(), strict=True))


def segment_row(attempt: Attempt, probe: Probe, segment: Segment, refused_because: str | None) -> dict[str, object]:
    """A row of `ingested_segments`."""
    if refused_because is not None:
        probe = Probe()
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
