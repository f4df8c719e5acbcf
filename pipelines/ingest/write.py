"""Writes new segments of the archive to the run's branches: `python -m pipelines ingest`. Main is unchanged."""

from collections.abc import Sequence
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
from pipelines.ingest.reading import read_and_parse, source_of
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write_campaigns import write_answers, write_campaigns
from pipelines.ingest.write_ecq import write_ecq
from pipelines.ingest.write_signals import write_signals, write_status

MAX_NAMED_DATA_IDS = 1000  # that a filter lists one by one
ONE_DAY = timedelta(days=1)
MAX_BROADCAST_ROWS = 200_000  # outcomes whose keys are broadcast, so that the known outcomes of those days are not shuffled

log = structlog.get_logger(__name__)


def ingest(run: Run, aside: Exclusions | None = None) -> Ingested:
    """Write the new segments to the run's branches, after dropping what an earlier attempt left; refuse what is in `aside`.

    New segments are those in the run's part of the archive that no run has ingested.

    Raises:
        Retryable: another process works at the same run; nothing of either is published.
    """
    if older := ensure_tables(run.catalog):
        log.warning(
            "some tables are of an earlier release; queries of them may be slower", tables=older, remedy="manifold lake migrate"
        )
    plan = begin(run, aside)
    if plan is None:
        counts = is_published(run.catalog, run.run_id, run.now)
        return written_result(run.catalog, run.run_id) if counts else Ingested(run.run_id)
    return _write(Attempt(run), plan)


def begin(run: Run, aside: Exclusions | None = None) -> Plan | None:
    """Open the run's branch of `ingested_segments` and return its plan; None if nothing is new or the run is committed.

    What an earlier attempt at this run left is dropped.
    """
    catalog, run_id, now = run.catalog, run.run_id, run.now
    finish_committed_runs(catalog)
    if is_published(catalog, run_id, now):
        log.info("run already committed", run_id=run_id)
        return None
    drop_branches(catalog, branch_of(run_id))
    for branch in drop_abandoned(catalog, now):
        log.warning("dropped an abandoned run", branch=branch)
    plan = make_plan(catalog, run.archive, run.part, aside)
    if not plan.segments:
        log.info("nothing new in the archive", run_id=run_id)
        return None
    open_run(catalog, run_id, plan.base[SEGMENTS.name], now)
    return plan


def written_result(catalog: Catalog, run_id: str) -> Ingested:
    """The counts of a run, published or not, from its snapshot of `ingested_segments`."""
    for snapshot in reversed(catalog.load_table(SEGMENTS.identifier).snapshots()):
        properties = properties_of(snapshot)
        if properties.get(RUN_ID) == run_id and RESULT in properties:
            return Ingested.from_json(properties[RESULT])
    return Ingested(run_id)


def _write(attempt: Attempt, plan: Plan) -> Ingested:
    refused: list[DataFrame] = []
    has_data = _write_ids(attempt, plan, refused)
    conflicting = _write_data(attempt, plan, refused) if has_data or plan.of(Stream.DATA) else []
    if conflicting:  # rare: a trigger's inline data has a data_id that was published with other bytes
        attempt.undo(IDS)
        _write_ids(attempt, plan, [], excluding=conflicting)
    _write_outcomes(attempt, plan, refused)
    if plan.of(Stream.ECQ):
        write_ecq(attempt, source_of(attempt, plan, Stream.ECQ), plan.base, refused)
    if plan.of(Stream.CAMPAIGN):
        write_campaigns(attempt, source_of(attempt, plan, Stream.CAMPAIGN), plan.base, refused)
    if plan.of(Stream.ANSWER):
        write_answers(attempt, source_of(attempt, plan, Stream.ANSWER), plan.base, refused)
    if plan.of(Stream.XRAY_RAW):
        write_signals(attempt, source_of(attempt, plan, Stream.XRAY_RAW), plan.base, refused)
    if plan.of(Stream.XRAY_STATUS):
        write_status(attempt, source_of(attempt, plan, Stream.XRAY_STATUS), plan.base, refused)
    if refused:
        attempt.append(QUARANTINE, transforms.once(transforms.all_of(refused), QUARANTINE.key), plan.base[QUARANTINE.name])
    return write_ledger(attempt, plan)


def _write_data(attempt: Attempt, plan: Plan, refused: list[DataFrame]) -> list[int]:
    """Write payloads and their index; return the seqs of triggers whose inline data is refused."""
    streams = {Stream.DATA: parsing.data, Stream.TRIGGER: parsing.inline_data}
    brought = {
        stream: read_and_parse(
            source_of(attempt, plan, stream), attempt.spark, parser, parsing.DATA, with_unreadable=stream is Stream.DATA
        )
        for stream, parser in streams.items()
        if plan.of(stream)
    }
    if not brought:
        return []
    light = [frame.drop("payload", "message").withColumn("stream", sf.lit(stream.value)) for stream, frame in brought.items()]
    seen = transforms.all_of(light).persist()
    accepted = seen.where("reason is null")
    judgement = transforms.classify(accepted, _known_data(attempt, plan, accepted)).persist()
    try:
        bad = seen.where("reason is not null").count()
        count = judgement.agg(
            *(sf.count_if(sf.col(c)).alias(c) for c in ("is_new", "is_conflict")), sf.count("*").alias("all")
        ).first()
        assert count is not None  # an aggregation has one row
        if bad:
            refused.append(transforms.refused_rows(brought[Stream.DATA], Stream.DATA))
        if count["is_new"]:
            rows = transforms.all_of([transforms.data_rows(frame, judgement) for frame in brought.values()])
            attempt.append(DATA, rows, plan.base[DATA.name])
        if count["all"] > count["is_conflict"]:
            attempt.append(META, transforms.sightings_of(judgement), plan.base[META.name])
        if not count["is_conflict"]:
            return []
        conflicts = judgement.where("is_conflict").select("seq", "stream", "stored_sha1").collect()
    finally:
        seen.unpersist()
        judgement.unpersist()
    named = attempt.spark.createDataFrame([(r["seq"], r["stored_sha1"]) for r in conflicts], "seq bigint, stored_sha1 string")
    refused += [transforms.conflict_rows(frame, named, stream) for stream, frame in brought.items()]
    return [r["seq"] for r in conflicts if r["stream"] == Stream.TRIGGER]


def _known_data(attempt: Attempt, plan: Plan, accepted: DataFrame) -> DataFrame:
    """(data_id, sha1, stored_at) of stored payloads, only for the run's data ids if those are few."""
    known = transforms.folded(attempt.main(META, plan.base[META.name])).select("data_id", "sha1", "stored_at")
    few = [row["data_id"] for row in accepted.select("data_id").distinct().limit(MAX_NAMED_DATA_IDS + 1).collect()]
    return known if len(few) > MAX_NAMED_DATA_IDS else known.where(sf.col("data_id").isin(few))


def _write_ids(attempt: Attempt, plan: Plan, refused: list[DataFrame], *, excluding: Sequence[int] = ()) -> bool:
    """Write the entries of all triggers except those with seqs in `excluding`; return whether any trigger has data.

    The worker returns one row per trigger with a list of VINs, and Spark explodes it: a row per VIN in Python takes ten times
    the CPU.
    """
    if not plan.of(Stream.TRIGGER):
        return False
    source, seen = source_of(attempt, plan, Stream.TRIGGER), Observation()
    triggers = read_and_parse(source, attempt.spark, parsing.triggers, parsing.TRIGGERS)
    if excluding:
        triggers = triggers.where(~sf.col("seq").isin(list(excluding)))
    triggers = triggers.observe(seen, sf.count("reason").alias("refused"), sf.count_if("has_data").alias("with_data"))
    attempt.append(IDS, transforms.ids_rows(triggers), plan.base[IDS.name])
    if seen.get["refused"]:
        bad = read_and_parse(source, attempt.spark, parsing.refused_triggers, parsing.TRIGGERS)
        refused.append(transforms.refused_rows(bad, Stream.TRIGGER))
    return bool(seen.get["with_data"])


def _write_outcomes(attempt: Attempt, plan: Plan, refused: list[DataFrame]) -> None:
    if not plan.of(Stream.OUTCOME):
        return
    found = read_and_parse(source_of(attempt, plan, Stream.OUTCOME), attempt.spark, parsing.outcomes, parsing.OUTCOMES).persist()
    try:
        rows = transforms.outcome_rows(found)
        accepted = sf.when(sf.col("reason").isNull(), sf.col("entry_seq"))
        bounds = found.agg(
            sf.min(accepted).alias("first"), sf.max(accepted).alias("last"), sf.count("reason").alias("refused")
        ).first()
        assert bounds is not None  # an aggregation has one row
        if bounds["first"] is not None:
            known = _known_outcomes(attempt, plan, bounds["first"], bounds["last"])
            attempt.append(
                OUTCOMES, _unknown(rows, known, few=plan.messages(Stream.OUTCOME) <= MAX_BROADCAST_ROWS), plan.base[OUTCOMES.name]
            )
        if bounds["refused"]:
            bad = transforms.refused_rows(found, Stream.OUTCOME)
            refused.append(transforms.not_in(bad, _known_refusals(attempt, plan), list(QUARANTINE.key)))
    finally:
        found.unpersist()


def _known_outcomes(attempt: Attempt, plan: Plan, first: int, last: int) -> DataFrame:
    """(vin, seq, outcome) of outcomes in the lake for seqs in [first, last]; prunes files by day and by seq."""
    of_days = attempt.main(OUTCOMES, plan.base[OUTCOMES.name]).where(
        sf.col("accepted_at").between(datetime_of(first), datetime_of(last))
    )
    return of_days.where(sf.col("seq").between(first, last)).select("vin", "seq", "outcome")


def _known_refusals(attempt: Attempt, plan: Plan) -> DataFrame:
    """(seq) of earlier refusals in the time range of the run's outcomes: the plan has not looked for refused outcomes."""
    known, bounds = attempt.main(QUARANTINE, plan.base[QUARANTINE.name]), _bounds_of_refusals(plan)
    there = "seq < 0" if bounds is None else sf.col("received_at").between(*map(sf.lit, bounds))
    return known.where(there).select("seq")


def _bounds_of_refusals(plan: Plan) -> tuple[datetime, datetime] | None:
    """Receive times of the run's outcomes, widened by a day, to prune the files read; None if the outcomes have no seqs."""
    probes = [plan.probes[segment.path] for segment in plan.of(Stream.OUTCOME)]
    seqs = [seq for probe in probes for seq in (probe.first_seq, probe.last_seq) if seq is not None]
    return (datetime_of(min(seqs)) - ONE_DAY, datetime_of(max(seqs)) + ONE_DAY) if seqs else None


def _unknown(rows: DataFrame, known: DataFrame, *, few: bool) -> DataFrame:
    if few:
        keys = ["vin", "seq"]
        known = known.join(sf.broadcast(rows.select(*keys)), keys, "left_semi")
    return transforms.new_outcomes(rows, known)
