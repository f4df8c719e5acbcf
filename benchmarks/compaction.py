"""Cost and benefit of compaction, on a table of thousands of small files.

`python -m benchmarks.compaction [--files 4000]`: ten days of ids in as many small files of 1,000 rows, written by forty commits.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks.command import count_of, in_a_folder
from benchmarks.lakes import vin_of
from benchmarks.machine import Cost, Row, cost_of, report
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT
from manifold.contracts.tables import IDS
from manifold.history.from_lake import read_entries
from manifold.lake.catalog import ensure_tables, open_catalog, where
from manifold.settings import Settings
from pipelines.maintenance.compact import Compacted, compact
from pipelines.spark.session import session

FILES, ROWS_PER_FILE, DAYS, COMMITS = 4000, 1000, 10, 40
VEHICLES = 50_000
LOOK_UPS = 5


def fill(spark: SparkSession, settings: Settings, files: int, now: datetime) -> None:
    """Each commit writes some files of every day, in arrival order, as many runs of an ingest would."""
    files_a_commit = files // COMMITS
    for commit in range(COMMITS):
        rows = spark.range(0, files_a_commit * ROWS_PER_FILE, 1, files_a_commit)
        day = sf.floor(sf.col("id") / ROWS_PER_FILE) % DAYS
        second = sf.lit(int(now.timestamp())) - day * 86_400 - commit
        seq = sf.shiftleft(second * 1000 - EPOCH_MS, TIME_SHIFT) + sf.col("id") % 1000
        vin = sf.format_string("WMANF0LD%09d", sf.abs(sf.hash("id", sf.lit(commit))) % VEHICLES)
        spark_rows = rows.select(
            vin.alias("vin"),
            sf.timestamp_seconds(second).alias("ts"),
            sf.lit("task_update_1").alias("request_id"),
            seq.alias("seq"),
            sf.lit("firmware-1").alias("data_id"),
            sf.lit(True).alias("applied"),
        )
        spark_rows.writeTo(f"{settings.catalog_name}.{IDS.identifier}").option("fanout-enabled", "true").append()


def look_up(catalog: Catalog) -> None:
    """A vehicle's whole history, as `manifold vin show` reads it; some vehicles."""
    for number in range(LOOK_UPS):
        read_entries(catalog, vin_of(number * 991))


def files_of_one_vehicle(catalog: Catalog) -> int:
    return len(list(catalog.load_table(IDS.identifier).scan(where(EqualTo, "vin", vin_of(991))).plan_files()))


def scan(spark: SparkSession, settings: Settings) -> None:
    """Every row of two columns."""
    spark.table(f"{settings.catalog_name}.{IDS.identifier}").agg(sf.max("seq"), sf.max("vin")).collect()


def measure(files: int, folder: Path) -> list[Row]:
    settings = Settings(home=folder / "home", compact_settled_days=2)
    catalog, now = open_catalog(settings), datetime.now(UTC).replace(hour=12)
    ensure_tables(catalog)
    with session(settings, "bench") as spark:
        fill(spark, settings, files, now)
        scan(spark, settings)  # warm
        before = (cost_of(look_up, catalog), cost_of(scan, spark, settings), files_of_one_vehicle(catalog))
        done: list[Compacted] = []
        cost = cost_of(lambda: done.append(compact(spark, catalog, settings, now=now + timedelta(minutes=1))))
        after = (cost_of(look_up, catalog), cost_of(scan, spark, settings), files_of_one_vehicle(catalog))
        again = cost_of(compact, spark, catalog, settings, now=now + timedelta(minutes=2))
    return [
        Row("compaction of the table", f"{files * ROWS_PER_FILE / cost.cpu_s:,.0f} rows a CPU second", cpu=f"{cost.cpu_s:.1f} s"),
        *_shapes(done[0]),
        Row("compaction once more, nothing to do", f"{again.wall_s:.1f} s", cpu=f"{again.cpu_s:.1f} s"),
        Row("files read for one vehicle's history", f"{before[2]} → {after[2]}", f"{after[2] / before[2]:.3f}"),
        _change("one vehicle's history", before[0], after[0], LOOK_UPS),
        _change("all rows, two columns, Spark", before[1], after[1], 1),
    ]


def _shapes(done: Compacted) -> list[Row]:
    was, now = done.tables[IDS.name].before, done.tables[IDS.name].after
    return [
        Row("files", f"{was.files:,} → {now.files:,}", f"{now.files / was.files:.3f}"),
        Row("bytes", f"{was.bytes:,} → {now.bytes:,}", f"{now.bytes / was.bytes:.2f}"),
        Row("manifests", f"{was.manifests} → {now.manifests}"),
    ]


def _change(what: str, before: Cost, after: Cost, times: int) -> Row:
    figure = f"{before.wall_s / times:.2f} → {after.wall_s / times:.2f} s"
    cpu = f"{before.cpu_s / times:.2f} → {after.cpu_s / times:.2f} s"
    return Row(what, figure, f"{after.cpu_s / before.cpu_s:.2f} of the CPU time", cpu=cpu)


def run(files: int = FILES) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    return in_a_folder(measure, files)


if __name__ == "__main__":
    files = count_of(__doc__, "files", FILES)
    report("compaction", f"{files:,} files of {ROWS_PER_FILE:,} rows", run(files))
