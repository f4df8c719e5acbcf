"""Writes messages of compacted queues to the branches of a run."""

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.archive.parsing import EcqKind
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE, StateKind
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.reading import Source, read_and_parse
from pipelines.ingest.transforms import instant_of, refused_rows

STATES = [EcqKind.ACKNOWLEDGED.value, EcqKind.EXPIRED.value, EcqKind.REWOUND.value]  # kinds with a row in ecq_state
STATE_KEYS = list(ECQ_STATE.key)


def write_ecq(attempt: Attempt, source: Source, refused: list[DataFrame]) -> None:
    """Write the stream `ecq`; append its refused rows to `refused`.

    Payload bytes are parsed only for the rows of `ecq_payload` and for refused rows; all other rows are built without payloads.
    """
    without_payloads = read_and_parse(source, attempt.spark, parsing.ecq_brief, parsing.ECQ_BRIEF).persist()
    try:
        is_write = (sf.col("kind") == EcqKind.WRITE.value) & sf.col("reason").isNull()
        counts = without_payloads.agg(
            sf.count_if(is_write).alias("writes"),
            sf.count_if(sf.col("kind").isin(STATES)).alias("states"),
            sf.count("reason").alias("refused"),
        ).first()
        assert counts is not None  # an aggregation has one row
        if counts["writes"]:
            with_payloads = read_and_parse(source, attempt.spark, parsing.ecq, parsing.ECQ, with_unreadable=False)
            attempt.append(ECQ_PAYLOAD, payload_rows(with_payloads))
            attempt.append(ECQ_INDEX, index_rows(without_payloads))
            attempt.append(ECQ_SEQNO, seqno_rows(without_payloads))
        if counts["states"]:
            attempt.append(ECQ_STATE, state_rows(without_payloads))
        if counts["refused"]:
            reparsed = read_and_parse(source, attempt.spark, parsing.ecq, parsing.ECQ)
            refused.append(refused_rows(reparsed, Stream.ECQ))
    finally:
        without_payloads.unpersist()


def payload_rows(parsed: DataFrame) -> DataFrame:
    """One row per write, with its payload."""
    return _writes(parsed).select("client_id", "key", "seq", instant_of("seq").alias("ts"), "payload")


def index_rows(parsed: DataFrame) -> DataFrame:
    """One row per write, without its payload."""
    return _writes(parsed).select("client_id", "seq", "key", instant_of("seq").alias("ts"), "applied")


def state_rows(parsed: DataFrame) -> DataFrame:
    """One row per acknowledgement, expiry and rewind. Of duplicates, the row with the earliest instant stays."""
    states = parsed.where(sf.col("reason").isNull() & sf.col("kind").isin(STATES))
    earliest = states.groupBy(*STATE_KEYS).agg(sf.min("acked_ms").alias("ms"))
    return earliest.select("client_id", "acked_seq", sf.timestamp_millis("ms").alias("acked_at"), "epoch", "kind")


def expired_rows(expired: DataFrame, *, at: datetime) -> DataFrame:
    """The rows of `ecq_state` for messages (client_id, seq, epoch) that garbage collection has expired at instant `at`."""
    kind = sf.lit(StateKind.EXPIRED.value).alias("kind")
    return expired.select("client_id", sf.col("seq").alias("acked_seq"), sf.lit(at).alias("acked_at"), "epoch", kind)


def folded_rows(changes: DataFrame, is_new: Column) -> DataFrame:
    """The rows of `ecq_state` that a compaction adds or removes, with the flag `is_new`: true for rows to add.

    `changes` has the columns of `pipelines.maintenance.ecq_plan.CHANGES`; `is_new` computes the flag from them.
    """
    acked = (sf.col("seq").alias("acked_seq"), sf.col("at").alias("acked_at"))
    return changes.select("client_id", *acked, "epoch", "kind", is_new.alias("is_new"))


def seqno_rows(parsed: DataFrame) -> DataFrame:
    """One row per client: the highest seq of its writes."""
    return _writes(parsed).groupBy("client_id").agg(sf.max("seq").alias("last_seq"))


def _writes(parsed: DataFrame) -> DataFrame:
    """The accepted writes."""
    return parsed.where(sf.col("reason").isNull() & (sf.col("kind") == EcqKind.WRITE.value))
