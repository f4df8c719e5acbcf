"""A whole run that ingests ten million ids (write, audit, publish), against bare Spark that writes the same rows to Parquet.

Each trigger names 5,000 vehicles, and a segment has a hundred triggers. Bare Spark parses the JSON but refuses no message, writes
no table, and would write rows twice if it were run twice. After a small run of each, both process the same archives in turn. The
audit is also compared with the write of the rows that it judges.
"""

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks._archive import append_payloads, trigger, valid_vins, write_segment
from benchmarks._measure import Cost, Row, Size, at_least, at_most, cost_of, multiples, speeds
from benchmarks._servers import PREFIX
from manifold.contracts.envelope import Envelope
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT, seq_of
from manifold.contracts.tables import IDS
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from pipelines.ingest.audit import audit_run
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Run
from pipelines.ingest.write import ingest, written_result
from pipelines.spark.session import session

AIMS = {
    "write, audit and publish 10,000,000 ids, by the clock": at_least(0.4),
    "write, audit and publish 10,000,000 ids, by CPU": at_least(0.35),
    "audit of 10,000,000 ids, by the clock": at_most(1.0),
}
BARE = "bare Spark to Parquet"
VINS, TRIGGERS_PER_SEGMENT = 5000, 100
TRIGGER_MS, DAY_MS = 10, 86_400_000  # milliseconds between two triggers, and between two archives
FIRST_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
PAYLOADS = {f"firmware-{number}": b"x" * 1000 for number in range(50)}
WARM_UP_IDS = 2_000_000
ROUNDS = 2


def run(size: Size) -> list[Row]:
    """Measure in a folder that is deleted afterwards."""
    ids = size.pick(full=10_000_000, small=200_000)
    bare = wrote = audited = published = Cost()
    with TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        settings = Settings(home=folder / "home", spark_driver_memory="4g")
        ensure_tables(open_catalog(settings))
        append_payloads(open_catalog(settings), PAYLOADS, at=datetime.now(UTC))
        with session(settings, "bench") as spark:
            for day in range(ROUNDS + 1):
                is_warm_up = day == 0
                archive = folder / f"archive-{day}"
                archive_ids = min(ids, WARM_UP_IDS) if is_warm_up else ids
                _write_archive(archive, archive_ids, day)
                bare_cost = cost_of(_bare_spark, spark, archive, folder / f"spark-{day}")
                write_cost, audit_cost, publish_cost = _whole_run(spark, settings, archive, f"day_{day}", archive_ids)
                if not is_warm_up:
                    bare += bare_cost
                    wrote += write_cost
                    audited += audit_cost
                    published += publish_cost
    whole = speeds(f"write, audit and publish {ids:,} ids", ids * ROUNDS, "ids", wrote + audited + published, BARE, bare)
    bare_row = Row(BARE, f"{ids * ROUNDS / bare.wall_s:,.0f} ids/s")
    return [bare_row, *whole, *multiples(f"audit of {ids:,} ids", audited, "its write", wrote, ROUNDS)]


def _write_archive(root: Path, ids: int, day: int) -> None:
    for first in range(0, ids // VINS, TRIGGERS_PER_SEGMENT):
        numbers = range(first, min(first + TRIGGERS_PER_SEGMENT, ids // VINS))
        write_segment(root, [_trigger(number, day) for number in numbers])


def _trigger(number: int, day: int) -> Envelope:
    seq = seq_of(FIRST_MS + day * DAY_MS + number * TRIGGER_MS, 0, 0)
    return trigger(seq, valid_vins(number * VINS, VINS), f"task_update_{number}", f"firmware-{number % len(PAYLOADS)}")


def _whole_run(spark: SparkSession, settings: Settings, archive: Path, run_id: str, ids: int) -> tuple[Cost, Cost, Cost]:
    """Return the cost of writing, judging and publishing a run."""
    catalog = open_catalog(settings)
    archive_settings = settings.model_copy(update={"archive_url": f"file://{archive}"})
    new_run = Run(spark, catalog, archive_settings, run_id, datetime.now(UTC))
    wrote = cost_of(ingest, new_run)
    audited = cost_of(audit_run, new_run)
    published = cost_of(publish, catalog, run_id)
    assert written_result(catalog, run_id).written[IDS.name] == ids
    return wrote, audited, published


def _bare_spark(spark: SparkSession, archive: Path, out: Path) -> None:
    """Write the rows of the archive's triggers as Parquet."""
    messages = spark.read.parquet(f"file://{archive}/trigger")
    parsed = sf.from_json(sf.col("payload").cast("string"), "ids array<string>, request_id string, data_id string").alias("m")
    rows = messages.select("seq", "applied", parsed).select(
        "seq", "applied", "m.request_id", "m.data_id", sf.explode("m.ids").alias("vin")
    )
    ts = sf.timestamp_millis(sf.shiftright("seq", TIME_SHIFT) + EPOCH_MS)
    ids = rows.select("vin", ts.alias("ts"), "request_id", "seq", "data_id", "applied")
    ids.write.option("compression", "zstd").parquet(f"file://{out}")
