"""Archives and rivals of the ingest benchmarks: triggers as the recorder writes them, and the same job by others' means."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT, datetime_of, seq_of
from manifold.contracts.topics import TRIGGER

FIRST_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000
TRIGGER_MS = 10  # between two triggers


@dataclass(frozen=True, slots=True)
class Shape:
    """How the entries of an archive are packed."""

    triggers: int
    vins: int  # of one trigger
    a_segment: int  # triggers

    @property
    def rows(self) -> int:
        """Entries in all."""
        return self.triggers * self.vins


def write_archive(root: Path, shape: Shape, *, day: int = 0) -> int:
    """Fill an archive with triggers of one day; how many rows that makes."""
    for first in range(0, shape.triggers, shape.a_segment):
        batch = [_trigger(number, shape.vins, day) for number in range(first, min(first + shape.a_segment, shape.triggers))]
        file = root / segment_path(Stream.TRIGGER, batch[0].seq, 0)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_arrow(batch), file, compression="zstd")
    return shape.rows


def _trigger(number: int, count: int, day: int) -> Envelope:
    seq = seq_of(FIRST_MS + day * DAY_MS + number * TRIGGER_MS, 0, 0)
    vins = [f"WMANF0LD{(number * count + place) * 7919 % 10**9:09d}" for place in range(count)]
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
