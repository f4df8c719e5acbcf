"""Ingest of ten million signals, which decrypts and processes them, against bare Spark that writes decoded rows.

For bare Spark, each signal's fields are columns and its payload is plain JSON. It parses that JSON and writes the rows of both
tables as Parquet. It does not decrypt, look up keys, check readings against bounds, or record the ingested segments.
"""

import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks._archive import write_segment
from benchmarks._measure import Row, Size, at_least, cost_of, speeds
from benchmarks._servers import PREFIX
from manifold.archive.parsing import SIGNALS, Limits, signals
from manifold.contracts.envelope import Envelope, to_arrow
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.signals.messages import RawSignal
from manifold.contracts.signals.records import raw_envelope
from manifold.contracts.tables import XRAY_PROCESSED, XRAY_RAW
from manifold.lake.catalog import open_catalog
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import new_key_line
from manifold.runtime import secret_files
from manifold.settings import Settings
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Run
from pipelines.ingest.write import ingest
from pipelines.spark.session import session

BARE = "bare Spark, decoded rows to Parquet"
AIMS = {"ingest and publish 10,000,000 signals, by CPU": at_least(0.45)}
LIMITS = Limits(max_ids=0, max_data_bytes=0)  # these limits apply to other streams only
SEGMENT_SIZE, DEVICES, ONE_DAY = 100_000, 10_000, timedelta(days=1)
FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)
READINGS = "readings array<struct<type string, value double, unit string, confidence double, name string>>"


def run(size: Size) -> list[Row]:
    """Measure bare Spark and ingest once, after a small run of each."""
    count = size.pick(full=10_000_000, small=100_000)
    with TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        settings = Settings(home=folder / "home", spark_driver_memory="4g")
        secret_files.get_or_create(settings.home, secret_files.KEYS, lambda: new_key_line("bench"))
        with session(settings, "bench") as spark:
            for day, rows in enumerate((SEGMENT_SIZE, count)):
                archive, decoded = folder / f"archive-{day}", folder / f"decoded-{day}"
                archive_settings = settings.model_copy(update={"archive_url": f"file://{archive}"})
                _write(archive_settings, archive, decoded, rows, FIRST + day * ONE_DAY)
                bare = cost_of(_bare_spark, spark, decoded, folder / f"spark-{day}")
                ours = cost_of(_whole_run, spark, archive_settings, f"day_{day}", rows)
    what = f"ingest and publish {count:,} signals"
    return [Row(BARE, f"{count / bare.wall_s:,.0f} signals/s"), *speeds(what, count, "signals", ours, BARE, bare)]


def _write(settings: Settings, archive: Path, decoded: Path, count: int, at: datetime) -> None:
    """Write signals to the archive, and the same signals decoded to the folder `decoded`; the first one is received at `at`."""
    keys = DayKeys.of(settings)
    first_ms = int(at.timestamp() * 1000)
    decoded.mkdir()
    for first in range(0, count, SEGMENT_SIZE):
        payloads = list[str]()
        batch = list(_signals(keys, first_ms, range(first, min(first + SEGMENT_SIZE, count)), payloads))
        write_segment(archive, batch)
        rows = pa.Table.from_batches(signals(to_arrow(batch), LIMITS), SIGNALS).append_column("plain", pa.array(payloads))
        pq.write_table(rows, decoded / f"{first}.parquet", compression="zstd")


def _signals(keys: DayKeys, first_ms: int, numbers: range, payloads: list[str]) -> Iterator[Envelope]:
    """Yield the sealed signals with these numbers, and append the payload of each to `payloads`."""
    for number in numbers:
        seq = seq_of(first_ms + number // 4, 0, number % 4)  # four signals in each millisecond
        readings = [
            {"type": "temperature", "value": number % 450 / 10, "unit": "celsius", "confidence": 0.9},
            {"type": "humidity", "value": number % 97, "unit": "percent"},
        ]
        payload = json.dumps({"readings": readings, "note": secrets.token_hex(30)})
        payloads.append(payload)
        signal = RawSignal(f"device-{number % DEVICES}", datetime_of(seq).isoformat(), "-", "v1")
        sealed = keys.seal(payload.encode(), seq=seq)
        yield raw_envelope(seq, datetime_of(seq), signal, sealed, payload=payload.encode(), key=secrets.token_hex(32))


def _whole_run(spark: SparkSession, settings: Settings, run_id: str, count: int) -> None:
    """Write and publish the signals of the archive, as `manifold ingest` does, but without the audit."""
    catalog = open_catalog(settings)
    result = ingest(Run(spark, catalog, settings, run_id, datetime.now(UTC)))
    publish(catalog, run_id)
    assert (result.written[XRAY_RAW.name], result.written[XRAY_PROCESSED.name]) == (count, count), result


def _bare_spark(spark: SparkSession, decoded: Path, out: Path) -> None:
    rows = spark.read.parquet(f"file://{decoded}").withColumn("captured_at", sf.timestamp_micros("captured_us"))
    raw = rows.drop("plain", "captured_us")
    raw.write.option("compression", "zstd").parquet(f"file://{out}-raw")
    parsed = rows.withColumn("parsed", sf.from_json("plain", READINGS))
    columns = ("device_id", "captured_at", "content_digest", "seq", "schema_version", "correlation_id", "parsed.readings")
    parsed.select(*columns).write.option("compression", "zstd").parquet(f"file://{out}-processed")
