"""Ingest of a trigger archive against the same job in bare Spark to Parquet, and beside DuckDB.

`python -m benchmarks.ingest [--rows 10000000]`. Rows are entries: one for each VIN of each trigger.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec

import duckdb
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from adapters.lake import open_catalog
from benchmarks.machine import Row, report
from contracts.envelope import Envelope, Stream, segment_path, to_arrow
from contracts.seq import EPOCH_MS, TIME_SHIFT, datetime_of, seq_of
from contracts.settings import Settings
from contracts.topics import TRIGGER
from pipelines.ingest import ingest
from pipelines.publish import publish
from pipelines.session import session

VINS_A_TRIGGER = 5000
TRIGGERS_A_SEGMENT = 100
AIM = 0.7
DAY_MS = 86_400_000
ROUNDS = 2
P = ParamSpec("P")
ROWS = 10_000_000
FIRST_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)


def write_archive(root: Path, rows: int, *, day: int = 0) -> int:
    """Fill an archive with triggers of one day; how many rows that makes."""
    triggers = max(1, rows // VINS_A_TRIGGER)
    for first in range(0, triggers, TRIGGERS_A_SEGMENT):
        batch = [_trigger(number, day) for number in range(first, min(first + TRIGGERS_A_SEGMENT, triggers))]
        file = root / segment_path(Stream.TRIGGER, batch[0].seq, 0)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow(batch), file, compression="zstd")
    return triggers * VINS_A_TRIGGER


def _trigger(number: int, day: int) -> Envelope:
    seq = seq_of(FIRST_MS + day * DAY_MS + number * 10, 0, 0)
    vins = [f"WMANF0LD{(number * VINS_A_TRIGGER + place) * 7919 % 10**9:09d}" for place in range(VINS_A_TRIGGER)]
    payload = json.dumps({"ids": vins, "request_id": f"task_update_{number}", "data_id": f"firmware-{number % 50}"}).encode()
    return Envelope(seq, datetime_of(seq), Stream.TRIGGER, TRIGGER, payload, applied=True)


def bare_spark(spark: SparkSession, archive: Path, out: Path) -> None:
    """The same rows by Spark's own means, without exactly-once, refusals or a table."""
    messages = spark.read.parquet(f"file://{archive}/trigger")
    said = sf.from_json(sf.col("payload").cast("string"), "ids array<string>, request_id string, data_id string").alias("m")
    rows = messages.select("seq", "applied", said).select(
        "seq", "applied", "m.request_id", "m.data_id", sf.explode("m.ids").alias("vin")
    )
    ts = sf.timestamp_millis(sf.shiftright("seq", TIME_SHIFT) + EPOCH_MS)
    wanted = rows.select("vin", ts.alias("ts"), "request_id", "seq", "data_id", "applied")
    wanted.write.option("compression", "zstd").parquet(f"file://{out}")


def bare_duckdb(archive: Path, out: Path) -> None:
    """The same rows by DuckDB."""
    messages = f"read_parquet('{archive}/trigger/**/*.parquet', hive_partitioning = false)"
    said = 'from_json(decode(payload)::json, \'{"ids": ["VARCHAR"], "request_id": "VARCHAR", "data_id": "VARCHAR"}\') AS m'
    ts = f"make_timestamptz(((seq >> {TIME_SHIFT}) + {EPOCH_MS}) * 1000) AS ts"
    select = f"SELECT unnest(m.ids) AS vin, {ts}, m.request_id, seq, m.data_id, applied"
    duckdb.execute(
        f"COPY ({select} FROM (SELECT seq, applied, {said} FROM {messages})) TO '{out}' (FORMAT parquet, COMPRESSION zstd)"
    )


def whole_run(spark: SparkSession, settings: Settings, archive: Path, run_id: str, count: int) -> None:
    """What `manifold ingest` does with triggers, but for the audit."""
    catalog = open_catalog(settings)
    of_archive = settings.model_copy(update={"archive_url": f"file://{archive}"})
    done = ingest(spark, catalog, of_archive, run_id=run_id, now=datetime.now(UTC))
    publish(catalog, run_id)
    assert done.written["sdv_fanout_ids"] == count, done


def measure(rows: int, folder: Path) -> list[Row]:
    """Each on the same archives in turn, so that what else the machine does falls on all; after a small run that warms it up."""
    home = folder / "home"
    archives = [folder / f"archive-{number}" for number in range(ROUNDS + 1)]
    warm_rows = min(rows, VINS_A_TRIGGER * TRIGGERS_A_SEGMENT * 4)
    counts = [write_archive(archive, rows if day else warm_rows, day=day) for day, archive in enumerate(archives)]
    bare_s = ours_s = duck_s = 0.0
    settings = Settings(home=home, spark_driver_memory="4g")
    with session(settings, "bench") as spark:
        for day, archive in enumerate(archives):
            bare = timed(bare_spark, spark, archive, folder / f"spark-{day}")
            ours = timed(whole_run, spark, settings, archive, f"day_{day}", counts[day])
            duck = timed(bare_duckdb, archive, folder / f"duckdb-{day}.parquet")
            if day:  # the first one warms up
                bare_s, ours_s, duck_s = bare_s + bare, ours_s + ours, duck_s + duck
    count = sum(counts[1:])
    ratio = bare_s / ours_s
    return [
        Row("bare Spark to Parquet", f"{count / bare_s:,.0f} rows/s", "1.00"),
        Row("ingest and publish", f"{count / ours_s:,.0f} rows/s", f"{ratio:.2f}", f"≥ {AIM}", ratio >= AIM),
        Row("DuckDB to Parquet", f"{count / duck_s:,.0f} rows/s", f"{bare_s / duck_s:.2f}"),
    ]


def timed(work: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> float:
    """Seconds that `work` takes by the wall clock."""
    start = time.perf_counter()
    work(*arguments, **named)
    return time.perf_counter() - start


def run(rows: int = ROWS) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        return measure(rows, Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    report("ingest", f"{rows:,} entries, {VINS_A_TRIGGER:,} a trigger", run(rows))
