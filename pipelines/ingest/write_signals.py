"""Writes messages of X-ray signals to the branches of a run.

A signal is one row, however many messages brought it: its key is device, instant and content. The signal service knows the keys
of the last minutes; a duplicate that arrives later, or through two processes at once, is found here, in the table itself.
"""

from collections.abc import Mapping

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import QUARANTINE, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS
from pipelines.ingest import transforms
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.reading import Source, read_and_parse
from pipelines.ingest.redelivery_dedup import REFUSED, STATUS, new_rows
from pipelines.ingest.signal_rows import signal_table_rows

KEY = list(XRAY_RAW.key)
HASH = f"xxhash64({', '.join(KEY)})"

log = structlog.get_logger(__name__)


def write_signals(attempt: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """Write the stream `xray_raw`; append its refused rows to `refused`.

    The archive is parsed once for both tables, and each signal is written once: signals already in main (after a service was
    killed) and duplicates within the run are left out.
    """
    parser = parsing.Processing.of(attempt.settings)
    found = read_and_parse(source, attempt.spark, parser, parsing.PROCESSED).persist()
    try:
        seen = found.agg(
            sf.count("reason").alias("refused"),
            *(how(sf.when(sf.col("reason").isNull(), sf.col("captured_us"))).alias(how.__name__) for how in (sf.min, sf.max)),
        ).first()
        assert seen is not None  # an aggregation has one row
        if seen["min"] is not None:
            repeated = _repeated_seqs(attempt, signal_table_rows(XRAY_RAW, found), base[XRAY_RAW.name], seen["min"], seen["max"])
            new = found if repeated is None else found.join(repeated, "seq", "left_anti")
            for table in (XRAY_RAW, XRAY_PROCESSED):
                attempt.append(table, signal_table_rows(table, new), base[table.name])
    finally:
        found.unpersist()
    if seen["refused"]:
        bad = transforms.refused_rows(read_and_parse(source, attempt.spark, parsing.signals, parsing.SIGNALS), Stream.XRAY_RAW)
        refused.append(new_rows(attempt, bad, REFUSED, base[QUARANTINE.name]))


def _repeated_seqs(attempt: Attempt, mine: DataFrame, base: int, first_us: int, last_us: int) -> DataFrame | None:
    """Seqs of messages whose signal main has at `base`, or an earlier message has brought; None if there are none.

    All were captured between these microseconds. Hashes are compared first: most runs have no duplicates, and then nothing is
    shuffled.
    """
    bounds = (sf.timestamp_micros(sf.lit(us).cast("bigint")) for us in (first_us, last_us))
    known = attempt.main(XRAY_RAW, base).where(sf.col("captured_at").between(*bounds)).select(*KEY)
    rows = mine.select("seq", *KEY).withColumn("hash", sf.expr(HASH))
    hashes = rows.select("hash").unionAll(known.selectExpr(f"{HASH} AS hash"))
    twice = hashes.groupBy("hash").count().where("count > 1").select("hash")
    suspected = rows.join(twice, "hash", "left_semi").persist()
    try:
        if suspected.isEmpty():
            return None
        first = suspected.groupBy(*KEY).agg(sf.min("seq").alias("seq"))
        new = first.join(known, KEY, "left_anti").select("seq")
        repeated = suspected.select("seq").join(new, "seq", "left_anti").localCheckpoint()
    finally:
        suspected.unpersist()
    log.info("duplicate signals skipped", signals=repeated.count())
    return repeated


def write_status(attempt: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """Write the stream `xray_status`; append its refused rows to `refused`."""
    found = read_and_parse(source, attempt.spark, parsing.statuses, parsing.STATUSES).persist()
    try:
        bad = found.where("reason is not null").count()
        statuses = new_rows(attempt, signal_table_rows(XRAY_STATUS, found), STATUS, base[XRAY_STATUS.name])
        attempt.append(XRAY_STATUS, statuses, base[XRAY_STATUS.name])
        if bad:
            rows = transforms.refused_rows(found, Stream.XRAY_STATUS)
            refused.append(new_rows(attempt, rows, REFUSED, base[QUARANTINE.name]))
    finally:
        found.unpersist()
