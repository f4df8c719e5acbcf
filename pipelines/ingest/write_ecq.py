"""Writes messages of compacted queues to the branches of a run."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.archive.parsing import EcqKind
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE
from pipelines.ingest import ecq_rows, transforms
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.reading import Source, read_and_parse


def write_ecq(attempt: Attempt, source: Source, refused: list[DataFrame]) -> None:
    """Write the stream `ecq`; append its refused rows to `refused`.

    Payload bytes are parsed only for the rows of `ecq_payload` and for refused rows; all other rows are built without payloads.
    """
    brief = read_and_parse(source, attempt.spark, parsing.ecq_brief, parsing.ECQ_BRIEF).persist()
    try:
        is_write = (sf.col("kind") == EcqKind.WRITE.value) & sf.col("reason").isNull()
        counts = brief.agg(
            sf.count_if(is_write).alias("writes"),
            sf.count_if(sf.col("kind").isin(ecq_rows.STATES)).alias("states"),
            sf.count("reason").alias("refused"),
        ).first()
        assert counts is not None  # an aggregation has one row
        if counts["writes"]:
            with_payloads = read_and_parse(source, attempt.spark, parsing.ecq, parsing.ECQ, with_unreadable=False)
            attempt.append(ECQ_PAYLOAD, ecq_rows.payload_rows(with_payloads))
            attempt.append(ECQ_INDEX, ecq_rows.index_rows(brief))
            attempt.append(ECQ_SEQNO, ecq_rows.seqno_rows(brief))
        if counts["states"]:
            attempt.append(ECQ_STATE, ecq_rows.state_rows(brief))
        if counts["refused"]:
            reparsed = read_and_parse(source, attempt.spark, parsing.ecq, parsing.ECQ)
            refused.append(transforms.refused_rows(reparsed, Stream.ECQ))
    finally:
        brief.unpersist()
