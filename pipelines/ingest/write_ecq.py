"""Messages of compacted queues to the branches of a run: on Spark, and in one process."""

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.archive.parsing import EcqKind
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE, Table
from pipelines.ingest import arrow_rows, ecq_rows, transforms
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.frames import parsed
from pipelines.ingest.reading import Source


def write_ecq(run: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """What the stream `ecq` brings; what is refused of it is added to `refused`.

    The messages' bytes are read once, on their way into `ecq_payload`; all else is made from the rest of their rows.
    """
    brief = parsed(source, run.spark, parsing.ecq_brief, parsing.ECQ_BRIEF).persist()
    try:
        written = (sf.col("kind") == EcqKind.WRITE.value) & sf.col("reason").isNull()
        counted = brief.agg(
            sf.count_if(written).alias("writes"),
            sf.count_if(sf.col("kind").isin(ecq_rows.STATES)).alias("states"),
            sf.count("reason").alias("refused"),
        ).first()
        assert counted is not None  # an aggregation has one row
        if counted["writes"]:
            whole = parsed(source, run.spark, parsing.ecq, parsing.ECQ, with_unreadable=False)
            run.append(ECQ_PAYLOAD, ecq_rows.payload_rows(whole), base[ECQ_PAYLOAD.name])
            run.append(ECQ_INDEX, ecq_rows.index_rows(brief), base[ECQ_INDEX.name])
            run.append(ECQ_SEQNO, ecq_rows.seqno_rows(brief), base[ECQ_SEQNO.name])
        if counted["states"]:
            run.append(ECQ_STATE, ecq_rows.state_rows(brief), base[ECQ_STATE.name])
        if counted["refused"]:
            refused.append(transforms.refused_rows(parsed(source, run.spark, parsing.ecq, parsing.ECQ), Stream.ECQ))
    finally:
        brief.unpersist()


# In the order in which they are written; how each table's rows are made of what was parsed.
TABLES: tuple[tuple[Table, Callable[[pa.Table], pa.Table]], ...] = (
    (ECQ_PAYLOAD, ecq_rows.payload_table),
    (ECQ_INDEX, ecq_rows.index_table),
    (ECQ_SEQNO, ecq_rows.seqno_table),
    (ECQ_STATE, ecq_rows.state_table),
)


def write_ecq_by_arrow(run: Attempt, messages: pa.Table, base: Mapping[str, int], refused: list[pa.Table]) -> None:
    """The same of messages that are parsed and in memory (`manifold.archive.parsing.ECQ`)."""
    bad, accepted = arrow_rows.parted(messages)
    for table, rows_of in TABLES:
        rows = rows_of(accepted)
        if rows.num_rows:
            run.put(table, rows, base[table.name])
    if bad.num_rows:
        refused.append(arrow_rows.refused_rows(bad, Stream.ECQ))
