"""Writes the stream `outcome` to the branches of a run: `sdv_fanout_outcomes`."""

from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import Outcome
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import OUTCOMES, QUARANTINE
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.planning import Plan
from pipelines.ingest.reading import read_and_parse, source_of
from pipelines.ingest.transforms import instant_of, refused_rows

ONE_DAY = timedelta(days=1)
MAX_BROADCAST_ROWS = 200_000  # outcomes of a run whose keys are broadcast; this avoids shuffling the outcomes already in the lake


def write_outcomes(attempt: Attempt, plan: Plan, refused: list[DataFrame]) -> None:
    """Write the outcomes of entries that are not in the lake yet; append the rows of refused messages to `refused`."""
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
            rows = outcome_rows(parsed)
            known = _known_outcomes(attempt, summary["first"], summary["last"])
            if plan.message_count(Stream.OUTCOME) <= MAX_BROADCAST_ROWS:  # keep only the known outcomes of this run's entries
                keys = ["vin", "seq"]
                known = known.join(sf.broadcast(rows.select(*keys)), keys, "left_semi")
            attempt.append(OUTCOMES, new_outcomes(rows, known))
        if summary["refused"]:
            refused_outcomes = refused_rows(parsed, Stream.OUTCOME)
            known_refusals = _known_refusals(attempt, plan)
            refused.append(rows_not_in(refused_outcomes, known_refusals, list(QUARANTINE.key)))
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
    if bounds is None:  # without seqs, only whole files can be refused, and quarantine keeps files under negative seqs
        return quarantine.where("seq < 0").select("seq")
    first, last = bounds
    return quarantine.where(sf.col("received_at").between(sf.lit(first), sf.lit(last))).select("seq")


def _outcome_time_range(plan: Plan) -> tuple[datetime, datetime] | None:
    """The time range of the run's outcome messages by their seqs; None if none has a seq.

    It is wider by a day on each side, because `received_at`, to which it is compared, may differ from the time in the seq.
    """
    probes = [plan.probes[segment.path] for segment in plan.segments_of(Stream.OUTCOME)]
    first_seqs = [probe.first_seq for probe in probes if probe.first_seq is not None]
    last_seqs = [probe.last_seq for probe in probes if probe.last_seq is not None]
    if not first_seqs or not last_seqs:
        return None
    return datetime_of(min(first_seqs)) - ONE_DAY, datetime_of(max(last_seqs)) + ONE_DAY


def outcome_rows(outcomes: DataFrame) -> DataFrame:
    """One row per ended entry, from the message with the lowest seq about it.

    An entry that was delivered after its withdrawal has a second row for the delivery.
    """
    accepted = outcomes.where("reason is null")
    end = sf.struct("outcome", "dispatched_ms", "ended_ms", "attempts", "said", "seq")
    delivery_seq = sf.when(sf.col("outcome") == "delivered", sf.col("seq"))  # null in all other messages, which `min_by` ignores
    ends = accepted.groupBy("vin", "entry_seq").agg(
        sf.min_by(end, "seq").alias("first_end"), sf.min_by(end, delivery_seq).alias("delivery")
    )
    late_delivery = sf.when(sf.col("first_end.outcome") == Outcome.WITHDRAWN.value, sf.col("delivery"))
    ends_with_row = sf.array_compact(sf.array("first_end", late_delivery))  # without a late delivery, only the first
    rows = ends.select("vin", "entry_seq", sf.explode(ends_with_row).alias("entry_end"))
    acknowledged = sf.when(sf.col("entry_end.outcome") == "delivered", sf.timestamp_millis("entry_end.ended_ms"))
    return rows.select(
        "vin",
        sf.col("entry_seq").alias("seq"),
        sf.col("entry_end.outcome").alias("outcome"),
        instant_of("entry_seq").alias("accepted_at"),
        sf.timestamp_millis("entry_end.dispatched_ms").alias("dispatched_at"),
        acknowledged.alias("acknowledged_at"),
        sf.timestamp_millis("entry_end.ended_ms").alias("ended_at"),
        sf.col("entry_end.attempts").alias("attempts"),
        sf.col("entry_end.said").alias("reason"),
        sf.col("entry_end.seq").alias("recorded_seq"),
    )


def new_outcomes(rows: DataFrame, known: DataFrame) -> DataFrame:
    """The outcomes of entries that are not in `known` (vin, seq, outcome).

    The outcome `delivered` is also new if `known` has the entry only as withdrawn.
    """
    renamed = [sf.col(name).alias(f"known_{name}") for name in ("vin", "seq", "outcome")]
    is_same_entry = (sf.col("vin") == sf.col("known_vin")) & (sf.col("seq") == sf.col("known_seq"))
    is_late_delivery = (sf.col("outcome") == Outcome.DELIVERED.value) & (sf.col("known_outcome") == Outcome.WITHDRAWN.value)
    return rows.join(known.select(*renamed).hint("shuffle_hash"), is_same_entry & ~is_late_delivery, "left_anti")


def rows_not_in(rows: DataFrame, known: DataFrame, keys: list[str]) -> DataFrame:
    """The rows whose keys are not in `known`. The hash join avoids sorting either side."""
    return rows.join(known.select(*keys).hint("shuffle_hash"), keys, "left_anti")


def expired_rows(ended: DataFrame, *, at: datetime, reason: str) -> DataFrame:
    """The rows of `sdv_fanout_outcomes` for entries (vin, seq) that garbage collection has expired at instant `at`.

    They have no seq of a recorded message, because no recorder has received these outcomes.
    """
    return ended.select(
        "vin",
        "seq",
        sf.lit(Outcome.EXPIRED.value).alias("outcome"),
        instant_of("seq").alias("accepted_at"),
        sf.lit(None).cast("timestamp").alias("dispatched_at"),
        sf.lit(None).cast("timestamp").alias("acknowledged_at"),
        sf.lit(at).alias("ended_at"),
        sf.lit(None).cast("int").alias("attempts"),
        sf.lit(reason).alias("reason"),
        sf.lit(None).cast("bigint").alias("recorded_seq"),
    )
