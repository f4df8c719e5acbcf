"""Makes the rows of the tables of compacted queues from parsed messages: over DataFrames, and over Arrow tables.

The input has the columns of `manifold.archive.parsing.ECQ`. No session, no clock, no name of a table.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.archive.parsing import EcqKind
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE, INSTANT
from pipelines.ingest.transforms import instant_of

STATES = [EcqKind.ACKNOWLEDGED.value, EcqKind.REWOUND.value]  # what ecq_state tells of
STATE_KEYS = list(ECQ_STATE.key)


def payload_rows(parsed: DataFrame) -> DataFrame:
    """One row for each write, with its bytes."""
    return _writes(parsed).select("client_id", "key", "seq", instant_of("seq").alias("ts"), "payload")


def payload_table(parsed: pa.Table) -> pa.Table:
    """`payload_rows` in Arrow."""
    return _dated(_written(parsed)).select(ECQ_PAYLOAD.arrow_schema.names).cast(ECQ_PAYLOAD.arrow_schema)


def index_rows(parsed: DataFrame) -> DataFrame:
    """One row for each write."""
    return _writes(parsed).select("client_id", "seq", "key", instant_of("seq").alias("ts"), "applied")


def index_table(parsed: pa.Table) -> pa.Table:
    """`index_rows` in Arrow."""
    return _dated(_written(parsed)).select(ECQ_INDEX.arrow_schema.names).cast(ECQ_INDEX.arrow_schema)


def state_rows(parsed: DataFrame) -> DataFrame:
    """One row for each acknowledgement and rewind; of one that was recorded twice, when it came first."""
    states = parsed.where(sf.col("reason").isNull() & sf.col("kind").isin(STATES))
    first = states.groupBy(*STATE_KEYS).agg(sf.min("acked_ms").alias("ms"))
    return first.select("client_id", "acked_seq", sf.timestamp_millis("ms").alias("acked_at"), "epoch", "kind")


def state_table(parsed: pa.Table) -> pa.Table:
    """`state_rows` in Arrow."""
    states = parsed.filter(pc.and_(pc.is_null(parsed["reason"]), pc.is_in(parsed["kind"], pa.array(STATES))))
    first = states.group_by(STATE_KEYS, use_threads=False).aggregate([("acked_ms", "min")])
    at = pc.cast(pc.cast(first["acked_ms_min"], pa.timestamp("ms", tz="UTC")), INSTANT)
    return first.append_column("acked_at", at).select(ECQ_STATE.arrow_schema.names).cast(ECQ_STATE.arrow_schema)


def seqno_rows(parsed: DataFrame) -> DataFrame:
    """The greatest seq of each client's writes."""
    return _writes(parsed).groupBy("client_id").agg(sf.max("seq").alias("last_seq"))


def seqno_table(parsed: pa.Table) -> pa.Table:
    """`seqno_rows` in Arrow."""
    greatest = _written(parsed).group_by("client_id", use_threads=False).aggregate([("seq", "max")])
    return greatest.rename_columns({"seq_max": "last_seq"}).select(ECQ_SEQNO.arrow_schema.names).cast(ECQ_SEQNO.arrow_schema)


def _writes(parsed: DataFrame) -> DataFrame:
    return parsed.where(sf.col("reason").isNull() & (sf.col("kind") == EcqKind.WRITE.value))


def _written(parsed: pa.Table) -> pa.Table:
    return parsed.filter(pc.and_(pc.is_null(parsed["reason"]), pc.equal(parsed["kind"], EcqKind.WRITE.value)))


def _dated(written: pa.Table) -> pa.Table:
    return written.append_column("ts", pa.array([datetime_of(seq) for seq in written["seq"].to_pylist()], INSTANT))
