"""Writes new segments of the archive to the run's branches: `python -m pipelines ingest`. Main is unchanged."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE, SEGMENTS
from manifold.lake.catalog import ensure_tables
from pipelines.ingest import transforms
from pipelines.ingest.attempt import Attempt, write_ledger
from pipelines.ingest.branches import RESULT, RUN_ID, branch_of, drop_abandoned, drop_branches, open_run, properties_of
from pipelines.ingest.planning import Exclusions, Plan, make_plan
from pipelines.ingest.publish import finish_committed_runs, is_published
from pipelines.ingest.reading import Source, read_and_parse, source_of
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write_campaigns import write_answers, write_campaigns
from pipelines.ingest.write_ecq import write_ecq
from pipelines.ingest.write_signals import write_signals, write_status

MAX_NAMED_DATA_IDS = 1000  # data ids that a filter lists one by one
ONE_DAY = timedelta(days=1)
MAX_BROADCAST_ROWS = 200_000  # outcomes of a run whose keys are broadcast; this avoids shuffling the outcomes already in the lake
# Streams whose rows depend on no other stream, each with the function that writes them.
INDEPENDENT_STREAMS: Mapping[Stream, Callable[[Attempt, Source, list[DataFrame]], None]] = {
    Stream.ECQ: write_ecq,
    Stream.CAMPAIGN: write_campaigns,
    Stream.ANSWER: write_answers,
    Stream.XRAY_RAW: write_signals,
    Stream.XRAY_STATUS: write_status,
}

log = structlog.get_logger(__name__)


def ingest(run: Run, exclusions: Exclusions | None = None) -> Ingested:
    """Write the new segments to the run's branches, and refuse the messages and files in `exclusions`.

    New segments are those in the run's part of the archive that no run has ingested. The branches of an earlier attempt at this
    run are dropped first.

    Raises:
        Retryable: another process is working on the same run. Neither process has published rows of the run.
    """
    if older := ensure_tables(run.catalog):
        log.warning(
            "some tables are of an earlier release; queries of them may be slower", tables=older, remedy="manifold lake migrate"
        )
    plan = begin(run, exclusions)
    if plan is not None:
        return _write(Attempt(run, plan.base), plan)
    if is_published(run.catalog, run.run_id, run.now):
        return written_result(run.catalog, run.run_id)
    return Ingested(run.run_id)


def begin(run: Run, exclusions: Exclusions | None = None) -> Plan | None:
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
        log.warning("dropped an abandoned run", branch=branch)
    plan = make_plan(catalog, run.archive, run.part, exclusions)
    if not plan.segments:
        log.info("nothing new in the archive", run_id=run_id)
        return None
    open_run(catalog, run_id, plan.base[SEGMENTS.name], now)
    return plan


def written_result(catalog: Catalog, run_id: str) -> Ingested:
    """The counts of a run, published or not, from its snapshot of `ingested_segments`; all zero without such a snapshot."""
    for snapshot in reversed(catalog.load_table(SEGMENTS.identifier).snapshots()):
        properties = properties_of(snapshot)
        if properties.get(RUN_ID) == run_id and RESULT in properties:
            return Ingested.from_json(properties[RESULT])
    return Ingested(run_id)


def _write(attempt: Attempt, plan: Plan) -> Ingested:
    """Write all streams of the plan, then quarantine, then `ingested_segments`."""
    refused: list[DataFrame] = []  # rows for quarantine
    has_inline_data = _write_ids(attempt, plan, refused)
    conflicting: list[int] = []
    if has_inline_data or plan.segments_of(Stream.DATA):
        conflicting = _write_data(attempt, plan, refused)
    if conflicting:  # rare: the inline data of a trigger has a data_id that was published with other bytes
        attempt.undo(IDS)
        # The refused triggers are already in `refused`, so the second call's list of them is dropped.
        _write_ids(attempt, plan, refused=[], excluding=conflicting)
    _write_outcomes(attempt, plan, refused)
    for stream, write_stream in INDEPENDENT_STREAMS.items():
        if plan.segments_of(stream):
            write_stream(attempt, source_of(attempt, plan, stream), refused)
    if refused:
        quarantined = transforms.one_row_per_key(transforms.union_of(refused), QUARANTINE.key)
        attempt.append(QUARANTINE, quarantined)
    return write_ledger(attempt, plan)


def _write_data(attempt: Attempt, plan: Plan, refused: list[DataFrame]) -> list[int]:
    """Write payloads and their index; return the seqs of triggers whose inline data conflicts with the stored payload."""
    frames: dict[Stream, DataFrame] = {}
    for stream, parser in {Stream.DATA: parsing.data, Stream.TRIGGER: parsing.inline_data}.items():
        if plan.segments_of(stream):
            source = source_of(attempt, plan, stream)
            # Unreadable trigger files are refused in `_write_ids`.
            with_unreadable = stream is Stream.DATA
            frames[stream] = read_and_parse(source, attempt.spark, parser, parsing.DATA, with_unreadable=with_unreadable)
    if not frames:
        return []
    without_bytes = [
        frame.drop("payload", "message").withColumn("stream", sf.lit(stream.value)) for stream, frame in frames.items()
    ]
    messages = transforms.union_of(without_bytes).persist()
    accepted = messages.where("reason is null")
    classified = transforms.classify(accepted, _known_data(attempt, accepted)).persist()
    try:
        refused_count = messages.where("reason is not null").count()
        counts = classified.agg(
            sf.count_if("is_new").alias("new"), sf.count_if("is_conflict").alias("conflicts"), sf.count("*").alias("all")
        ).first()
        assert counts is not None  # an aggregation has one row
        if refused_count:
            refused.append(transforms.refused_rows(frames[Stream.DATA], Stream.DATA))
        if counts["new"]:
            rows = transforms.union_of([transforms.data_rows(frame, classified) for frame in frames.values()])
            attempt.append(DATA, rows)
        if counts["all"] > counts["conflicts"]:
            attempt.append(META, transforms.sightings_of(classified))
        if not counts["conflicts"]:
            return []
        conflicts = classified.where("is_conflict").select("seq", "stream", "stored_sha1").collect()
    finally:
        messages.unpersist()
        classified.unpersist()
    stored = [(row["seq"], row["stored_sha1"]) for row in conflicts]
    conflict_frame = attempt.spark.createDataFrame(stored, "seq bigint, stored_sha1 string")
    refused += [transforms.conflict_rows(frame, conflict_frame, stream) for stream, frame in frames.items()]
    return [row["seq"] for row in conflicts if row["stream"] == Stream.TRIGGER]


def _known_data(attempt: Attempt, accepted: DataFrame) -> DataFrame:
    """(data_id, sha1, stored_at) of the payloads in the lake.

    If the run has at most `MAX_NAMED_DATA_IDS` data ids, only their payloads are returned.
    """
    known = transforms.folded(attempt.main(META)).select("data_id", "sha1", "stored_at")
    rows = accepted.select("data_id").distinct().limit(MAX_NAMED_DATA_IDS + 1).collect()
    if len(rows) > MAX_NAMED_DATA_IDS:
        return known
    return known.where(sf.col("data_id").isin([row["data_id"] for row in rows]))


def _write_ids(attempt: Attempt, plan: Plan, refused: list[DataFrame], *, excluding: Sequence[int] = ()) -> bool:
    """Write the entries of all triggers except those with seqs in `excluding`; return whether any trigger has inline data.

    A worker returns one row per trigger with a list of VINs, which Spark explodes. To build a row per VIN in Python would take
    ten times the CPU time.
    """
    if not plan.segments_of(Stream.TRIGGER):
        return False
    source = source_of(attempt, plan, Stream.TRIGGER)
    counts = Observation()
    triggers = read_and_parse(source, attempt.spark, parsing.triggers, parsing.TRIGGERS)
    if excluding:
        triggers = triggers.where(~sf.col("seq").isin(list(excluding)))
    triggers = triggers.observe(counts, sf.count("reason").alias("refused"), sf.count_if("has_data").alias("with_data"))
    attempt.append(IDS, transforms.ids_rows(triggers))
    if counts.get["refused"]:
        refused_triggers = read_and_parse(source, attempt.spark, parsing.refused_triggers, parsing.TRIGGERS)
        refused.append(transforms.refused_rows(refused_triggers, Stream.TRIGGER))
    return bool(counts.get["with_data"])


def _write_outcomes(attempt: Attempt, plan: Plan, refused: list[DataFrame]) -> None:
    """Write the outcomes of entries that are not in the lake yet."""
    if not plan.segments_of(Stream.OUTCOME):
        return
    source = source_of(attempt, plan, Stream.OUTCOME)
    parsed = read_and_parse(source, attempt.spark, parsing.outcomes, parsing.OUTCOMES).persist()
    try:
        accepted_seq = sf.when(sf.col("reason").isNull(), sf.col("entry_seq"))
        summary = parsed.agg(
            sf.min(accepted_seq).alias("first"), sf.max(accepted_seq).alias("last"), sf.count("reason").alias("refused")
        ).first()
        assert summary is not None  # an aggregation has one row
        if summary["first"] is not None:
            rows = transforms.outcome_rows(parsed)
            known = _known_outcomes(attempt, summary["first"], summary["last"])
            if plan.message_count(Stream.OUTCOME) <= MAX_BROADCAST_ROWS:
                keys = ["vin", "seq"]
                known = known.join(sf.broadcast(rows.select(*keys)), keys, "left_semi")
            attempt.append(OUTCOMES, transforms.new_outcomes(rows, known))
        if summary["refused"]:
            refused_outcomes = transforms.refused_rows(parsed, Stream.OUTCOME)
            known_refusals = _known_refusals(attempt, plan)
            refused.append(transforms.rows_not_in(refused_outcomes, known_refusals, list(QUARANTINE.key)))
    finally:
        parsed.unpersist()


def _known_outcomes(attempt: Attempt, first: int, last: int) -> DataFrame:
    """(vin, seq, outcome) of the outcomes in the lake with a seq in [first, last]."""
    # The condition on the day column lets Iceberg prune partitions; it follows from the condition on the seq.
    is_in_days = sf.col("accepted_at").between(datetime_of(first), datetime_of(last))
    rows = attempt.main(OUTCOMES).where(is_in_days)
    return rows.where(sf.col("seq").between(first, last)).select("vin", "seq", "outcome")


def _known_refusals(attempt: Attempt, plan: Plan) -> DataFrame:
    """(seq) of the quarantined messages in the time range of the run's outcomes.

    They are needed because the plan does not deduplicate the outcome stream, so a refused outcome may already be in quarantine.
    """
    quarantine = attempt.main(QUARANTINE)
    bounds = _outcome_time_range(plan)
    if bounds is None:
        return quarantine.where("seq < 0").select("seq")
    first, last = bounds
    return quarantine.where(sf.col("received_at").between(sf.lit(first), sf.lit(last))).select("seq")


def _outcome_time_range(plan: Plan) -> tuple[datetime, datetime] | None:
    """The time range of the run's outcome messages by their seqs, widened by a day on each side; None if none has a seq."""
    probes = [plan.probes[segment.path] for segment in plan.segments_of(Stream.OUTCOME)]
    seqs = [seq for probe in probes for seq in (probe.first_seq, probe.last_seq) if seq is not None]
    if not seqs:
        return None
    return datetime_of(min(seqs)) - ONE_DAY, datetime_of(max(seqs)) + ONE_DAY
