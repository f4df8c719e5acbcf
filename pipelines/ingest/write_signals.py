"""Messages of X-ray signals to the branches of a run: on Spark, and in one process.

A signal is one row, whichever message brought it first: its key is device, instant and content. The door knows the keys of the
last minutes; what comes later, or by two doors at once, is known here by the table itself.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from archive import parsing
from contracts.envelope import Stream
from contracts.settings import Settings
from contracts.tables import QUARANTINE, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS
from pipelines.ingest import arrow_rows, signal_rows, transforms
from pipelines.ingest.arrow_commits import between, matching
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.delivered_again import REFUSED, STATUS, new_rows, new_rows_by_arrow
from pipelines.ingest.frames import parsed
from pipelines.ingest.reading import Source

KEY = list(XRAY_RAW.key)
FEW = 1_000_000  # seqs that are sent to every worker

log = structlog.get_logger(__name__)


def parts(settings: Settings) -> tuple[tuple[parsing.Parser, pa.Schema], tuple[parsing.Parser, pa.Schema]]:
    """How a raw signal is read for its own row, and for what processing makes of it: parsers, and their schemas."""
    return (parsing.signals, parsing.SIGNALS), (parsing.Processing.of(settings), parsing.PROCESSED)


def write_signals(run: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """What the stream `xray_raw` brings; what is refused of it is added to `refused`."""
    brief = parsed(source, run.spark, parsing.signals_brief, parsing.SIGNALS_BRIEF).persist()
    try:
        of_accepted = sf.when(sf.col("reason").isNull(), sf.col("captured_us"))
        counted = brief.agg(
            sf.min(of_accepted).alias("first"),
            sf.max(of_accepted).alias("last"),
            sf.count(of_accepted).alias("accepted"),
            sf.count("reason").alias("refused"),
        ).first()
        assert counted is not None  # an aggregation has one row
        if counted["accepted"]:
            ends = (sf.timestamp_micros(sf.lit(counted[end]).cast("bigint")) for end in ("first", "last"))
            known = run.main(XRAY_RAW, base[XRAY_RAW.name]).where(sf.col("captured_at").between(*ends)).select(*KEY)
            again = _again(brief.where("reason is null"), known)
            for table, (parser, schema) in zip((XRAY_RAW, XRAY_PROCESSED), parts(run.settings), strict=True):
                rows = signal_rows.rows_of(table, parsed(source, run.spark, parser, schema, with_unreadable=False))
                run.append(table, rows if again is None else rows.join(again, "seq", "left_anti"), base[table.name])
        if counted["refused"]:
            bad = transforms.refused_rows(parsed(source, run.spark, parsing.signals, parsing.SIGNALS), Stream.XRAY_RAW)
            refused.append(new_rows(run, bad, REFUSED, base[QUARANTINE.name]))
    finally:
        brief.unpersist()


def _again(accepted: DataFrame, known: DataFrame) -> DataFrame | None:
    """(seq) of messages whose signal is `known`, or was brought by a message before them; None: there are none.

    Hashes are compared first: in most runs no two are alike, and no key is shuffled.
    """
    mine = accepted.select("seq", "device_id", sf.timestamp_micros("captured_us").alias("captured_at"), "content_digest")
    hashed = mine.withColumn("hash", sf.xxhash64(*KEY))
    alike = hashed.groupBy("hash").count().where("count > 1").select("hash")
    there = known.select(sf.xxhash64(*KEY).alias("hash")).join(hashed.select("hash"), "hash", "left_semi")
    suspects = alike.union(there).distinct().persist()
    try:
        if suspects.isEmpty():
            return None
        suspected = hashed.join(suspects, "hash", "left_semi")
        first = suspected.groupBy(*KEY).agg(sf.min("seq").alias("seq"))
        new = first.join(known, KEY, "left_anti").select("seq")
        again = suspected.select("seq").join(new, "seq", "left_anti").localCheckpoint()
    finally:
        suspects.unpersist()
    count = again.count()
    log.info("signals that the lake has already are let be", signals=count)
    return sf.broadcast(again) if 0 < count <= FEW else again if count else None


def write_status(run: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """What the stream `xray_status` brings."""
    found = parsed(source, run.spark, parsing.statuses, parsing.STATUSES).persist()
    try:
        bad = found.where("reason is not null").count()
        statuses = new_rows(run, signal_rows.rows_of(XRAY_STATUS, found), STATUS, base[XRAY_STATUS.name])
        run.append(XRAY_STATUS, statuses, base[XRAY_STATUS.name])
        if bad:
            rows = transforms.refused_rows(found, Stream.XRAY_STATUS)
            refused.append(new_rows(run, rows, REFUSED, base[QUARANTINE.name]))
    finally:
        found.unpersist()


def write_signals_by_arrow(
    run: Attempt, messages: pa.Table, processed: pa.Table, base: Mapping[str, int], refused: list[pa.Table]
) -> None:
    """The same of raw signals that are in memory (`archive.parsing.SIGNALS` and `PROCESSED`)."""
    bad, accepted = arrow_rows.parted(messages)
    if accepted.num_rows:
        rows = signal_rows.table_of(XRAY_RAW, signal_rows.once(accepted))
        ends = pc.min_max(rows["captured_at"]).as_py()
        near = between("captured_at", ends["min"], ends["max"])
        known = matching(run.catalog, XRAY_RAW, base[XRAY_RAW.name], rows.select(KEY), KEY, near)
        new = arrow_rows.not_in(rows, known, KEY)
        if new.num_rows < accepted.num_rows:
            log.info("signals that the lake has already are let be", signals=accepted.num_rows - new.num_rows)
        run.put(XRAY_RAW, new, base[XRAY_RAW.name])
        of_new = processed.filter(pc.is_in(processed["seq"], value_set=new["seq"].combine_chunks()))
        run.put(XRAY_PROCESSED, signal_rows.table_of(XRAY_PROCESSED, of_new), base[XRAY_PROCESSED.name])
    if bad.num_rows:
        rows = arrow_rows.refused_rows(bad, Stream.XRAY_RAW)
        refused.append(new_rows_by_arrow(run, rows, REFUSED, base[QUARANTINE.name]))


def write_status_by_arrow(run: Attempt, messages: pa.Table, base: Mapping[str, int], refused: list[pa.Table]) -> None:
    """The same of devices' status (`archive.parsing.STATUSES`)."""
    bad, accepted = arrow_rows.parted(messages)
    if accepted.num_rows:
        statuses = signal_rows.table_of(XRAY_STATUS, accepted)
        run.put(XRAY_STATUS, new_rows_by_arrow(run, statuses, STATUS, base[XRAY_STATUS.name]), base[XRAY_STATUS.name])
    if bad.num_rows:
        rows = arrow_rows.refused_rows(bad, Stream.XRAY_STATUS)
        refused.append(new_rows_by_arrow(run, rows, REFUSED, base[QUARANTINE.name]))
