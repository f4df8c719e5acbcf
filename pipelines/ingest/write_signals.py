"""Messages of X-ray signals to the branches of a run: on Spark, and in one process.

A signal is one row, however many messages brought it: its key is device, instant and content. The door knows the keys of the
last minutes; a repeat that comes later, or by two doors at once, is found here in the table itself.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import QUARANTINE, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS
from manifold.lake.hashes import AT_ONCE, standing_in_both, standing_twice
from pipelines.ingest import arrow_rows, signal_rows, transforms
from pipelines.ingest.arrow_commits import between, matching
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.delivered_again import REFUSED, STATUS, new_rows, new_rows_by_arrow
from pipelines.ingest.frames import parsed
from pipelines.ingest.reading import Source
from pipelines.ingest.worker_files import Work, write_files

KEY = list(XRAY_RAW.key)
HASH = f"xxhash64({', '.join(KEY)})"

log = structlog.get_logger(__name__)


class _Seen(NamedTuple):
    """What workers tell of some messages."""

    refused: int
    first_us: int | None  # of what was accepted, when it was captured
    last_us: int | None


def write_signals(run: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """What the stream `xray_raw` brings; what is refused of it is added to `refused`.

    Both rows of a signal are written in one pass over the archive, and then looked at: the keys alone are read back, which is a
    tenth of reading the archive once more. Only where the lake has some of them already, as after a door was killed, all is
    written again without those.
    """
    work = Work(
        parsing.Processing.of(run.settings),
        parsing.PROCESSED,
        tuple((table, partial(signal_rows.table_of, table)) for table in (XRAY_RAW, XRAY_PROCESSED)),
        _seen,
    )
    written = write_files(run, source, work)
    instants = [us for seen in written.told for us in (seen.first_us, seen.last_us) if us is not None]
    if instants:
        run.append_files(XRAY_RAW, written.files[XRAY_RAW.name], base[XRAY_RAW.name])
        if again := _again(run, base[XRAY_RAW.name], min(instants), max(instants)):
            run.undo(XRAY_RAW)
            written = write_files(run, source, work, but=again)
            run.append_files(XRAY_RAW, written.files[XRAY_RAW.name], base[XRAY_RAW.name])
        run.append_files(XRAY_PROCESSED, written.files[XRAY_PROCESSED.name], base[XRAY_PROCESSED.name])
    if any(seen.refused for seen in written.told):
        bad = transforms.refused_rows(parsed(source, run.spark, parsing.signals, parsing.SIGNALS), Stream.XRAY_RAW)
        refused.append(new_rows(run, bad, REFUSED, base[QUARANTINE.name]))


def _seen(refused: pa.Table, accepted: pa.Table) -> _Seen:
    span = pc.min_max(accepted["captured_us"]).as_py()
    return _Seen(refused.num_rows, span["min"], span["max"])


def _again(run: Attempt, base: int, first_us: int, last_us: int) -> list[int]:
    """The seqs of messages whose signal main had at `base`, or that another message before them has brought.

    All were captured between these microseconds. Hashes are compared first: in most runs no two are alike, and nothing is
    shuffled.
    """
    bounds = (sf.timestamp_micros(sf.lit(us).cast("bigint")) for us in (first_us, last_us))
    known = run.main(XRAY_RAW, base).where(sf.col("captured_at").between(*bounds)).select(*KEY)
    mine = run.added(XRAY_RAW, base).select("seq", *KEY)
    suspects = _alike(mine, known, run.written[XRAY_RAW.name]).persist()
    try:
        if suspects.isEmpty():
            return []
        suspected = mine.withColumn("hash", sf.expr(HASH)).join(suspects, "hash", "left_semi")
        first = suspected.groupBy(*KEY).agg(sf.min("seq").alias("seq"))
        new = first.join(known, KEY, "left_anti").select("seq")
        again: list[int] = suspected.select("seq").join(new, "seq", "left_anti").toArrow()["seq"].to_pylist()
    finally:
        suspects.unpersist()
    log.info("signals that the lake has already are let be", signals=len(again))
    return again


def _alike(mine: DataFrame, known: DataFrame, rows: int) -> DataFrame:
    """(hash) of the keys of `mine`, which has so many rows, that stand there several times, or in `known`; each once."""
    of_mine, of_known = (frame.selectExpr(f"{HASH} AS hash") for frame in (mine, known))
    if max(rows, known.count()) > AT_ONCE:
        twice = of_mine.groupBy("hash").count().where("count > 1").select("hash")
        return twice.union(of_known.join(of_mine, "hash", "left_semi")).distinct()
    hashes, others = (frame.toArrow()["hash"] for frame in (of_mine, of_known))
    found = np.union1d(standing_twice(hashes), standing_in_both(hashes, others))
    return mine.sparkSession.createDataFrame([(one,) for one in found.tolist()], "hash bigint")


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


def write_signals_by_arrow(run: Attempt, messages: pa.Table, base: Mapping[str, int], refused: list[pa.Table]) -> None:
    """The same of raw signals that are in memory (`manifold.archive.parsing.PROCESSED`)."""
    bad, accepted = arrow_rows.parted(messages)
    if accepted.num_rows:
        first = signal_rows.once(accepted)
        rows = signal_rows.table_of(XRAY_RAW, first)
        ends = pc.min_max(rows["captured_at"]).as_py()
        near = between("captured_at", ends["min"], ends["max"])
        known = matching(run.catalog, XRAY_RAW, base[XRAY_RAW.name], rows.select(KEY), KEY, near)
        new = arrow_rows.not_in(rows, known, KEY)
        if new.num_rows < accepted.num_rows:
            log.info("signals that the lake has already are let be", signals=accepted.num_rows - new.num_rows)
        run.put(XRAY_RAW, new, base[XRAY_RAW.name])
        of_new = first.filter(pc.is_in(first["seq"], value_set=new["seq"].combine_chunks()))
        run.put(XRAY_PROCESSED, signal_rows.table_of(XRAY_PROCESSED, of_new), base[XRAY_PROCESSED.name])
    if bad.num_rows:
        rows = arrow_rows.refused_rows(bad, Stream.XRAY_RAW)
        refused.append(new_rows_by_arrow(run, rows, REFUSED, base[QUARANTINE.name]))


def write_status_by_arrow(run: Attempt, messages: pa.Table, base: Mapping[str, int], refused: list[pa.Table]) -> None:
    """The same of devices' status (`manifold.archive.parsing.STATUSES`)."""
    bad, accepted = arrow_rows.parted(messages)
    if accepted.num_rows:
        statuses = signal_rows.table_of(XRAY_STATUS, accepted)
        run.put(XRAY_STATUS, new_rows_by_arrow(run, statuses, STATUS, base[XRAY_STATUS.name]), base[XRAY_STATUS.name])
    if bad.num_rows:
        rows = arrow_rows.refused_rows(bad, Stream.XRAY_STATUS)
        refused.append(new_rows_by_arrow(run, rows, REFUSED, base[QUARANTINE.name]))
