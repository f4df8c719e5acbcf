"""Writes messages of X-ray signals to the branches of a run.

A signal is one row, even if several messages contain it. Its key is device, instant and content. The signal service recognizes
duplicates that arrive within minutes at the same process. All other duplicates are found here, by comparison with the table.
"""

from collections.abc import Mapping

import structlog
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS, Table
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.reading import Source, read_and_parse
from pipelines.ingest.redelivery_dedup import REFUSED, STATUS, new_rows
from pipelines.ingest.transforms import instant_of, refused_rows

KEY = list(XRAY_RAW.key)
HASH = f"xxhash64({', '.join(KEY)})"
# Table column → column of the parsed messages that has the instant in microseconds.
_MICROSECOND_COLUMNS: Mapping[str, str] = {"captured_at": "captured_us", "seen_at": "seen_us"}

log = structlog.get_logger(__name__)


def write_signals(attempt: Attempt, source: Source, refused: list[DataFrame]) -> None:
    """Write the stream `xray_raw`; append its refused rows to `refused`.

    The archive is parsed once for both tables. Signals that main already has, and duplicates within the run, are left out.
    """
    parser = parsing.Processing.of(attempt.settings)
    parsed = read_and_parse(source, attempt.spark, parser, parsing.PROCESSED).persist()
    try:
        captured_us = sf.when(sf.col("reason").isNull(), sf.col("captured_us"))
        summary = parsed.agg(
            sf.count("reason").alias("refused"), sf.min(captured_us).alias("first_us"), sf.max(captured_us).alias("last_us")
        ).first()
        assert summary is not None  # an aggregation has one row
        if summary["first_us"] is not None:
            raw_rows = signal_table_rows(XRAY_RAW, parsed)
            repeated = _repeated_seqs(attempt, raw_rows, summary["first_us"], summary["last_us"])
            new = parsed if repeated is None else parsed.join(repeated, "seq", "left_anti")
            for table in (XRAY_RAW, XRAY_PROCESSED):
                attempt.append(table, signal_table_rows(table, new))
    finally:
        parsed.unpersist()
    if summary["refused"]:
        reparsed = read_and_parse(source, attempt.spark, parsing.signals, parsing.SIGNALS)
        refused_signals = refused_rows(reparsed, Stream.XRAY_RAW)
        refused.append(new_rows(attempt, refused_signals, REFUSED))


def _repeated_seqs(attempt: Attempt, signals: DataFrame, first_us: int, last_us: int) -> DataFrame | None:
    """The seqs of messages whose signal is in main at the base snapshot or in another message of the run with a lower seq.

    All signals were captured between `first_us` and `last_us` (inclusive, in microseconds). Returns None if there are none.
    """
    first = sf.timestamp_micros(sf.lit(first_us).cast("bigint"))
    last = sf.timestamp_micros(sf.lit(last_us).cast("bigint"))
    known = attempt.main(XRAY_RAW).where(sf.col("captured_at").between(first, last)).select(*KEY)
    # Hashes are compared before keys: most runs have no duplicates, and the keys need not be shuffled then.
    rows = signals.select("seq", *KEY).withColumn("hash", sf.expr(HASH))
    hashes = rows.select("hash").unionAll(known.selectExpr(f"{HASH} AS hash"))
    repeated_hashes = hashes.groupBy("hash").count().where("count > 1").select("hash")
    suspected = rows.join(repeated_hashes, "hash", "left_semi").persist()
    try:
        if suspected.isEmpty():
            return None
        first_in_run = suspected.groupBy(*KEY).agg(sf.min("seq").alias("seq"))
        new = first_in_run.join(known, KEY, "left_anti").select("seq")
        # Computed here, before `suspected` is unpersisted.
        repeated = suspected.select("seq").join(new, "seq", "left_anti").localCheckpoint()
    finally:
        suspected.unpersist()
    log.info("duplicate signals skipped", run_id=attempt.run_id, table=XRAY_RAW.name, signals=repeated.count())
    return repeated


def write_status(attempt: Attempt, source: Source, refused: list[DataFrame]) -> None:
    """Write the stream `xray_status`; append its refused rows to `refused`."""
    parsed = read_and_parse(source, attempt.spark, parsing.statuses, parsing.STATUSES).persist()
    try:
        refused_count = parsed.where("reason is not null").count()
        statuses = new_rows(attempt, signal_table_rows(XRAY_STATUS, parsed), STATUS)
        attempt.append(XRAY_STATUS, statuses)
        if refused_count:
            refused_statuses = refused_rows(parsed, Stream.XRAY_STATUS)
            refused.append(new_rows(attempt, refused_statuses, REFUSED))
    finally:
        parsed.unpersist()


def signal_table_rows(table: Table, parsed: DataFrame) -> DataFrame:
    """The rows to append to the table: one per accepted message."""
    columns = [_column(column.name) for column in table.columns]
    return parsed.where("reason is null").select(*columns)


def _column(name: str) -> Column:
    """The value of a table column, computed from the columns of the parsed messages."""
    if name in _MICROSECOND_COLUMNS:
        return sf.timestamp_micros(_MICROSECOND_COLUMNS[name]).alias(name)
    if name == "received_at":
        return instant_of("seq").alias(name)
    return sf.col(name)
