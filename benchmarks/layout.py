"""Why ids lie in the lake as they do: what each way to lay them down costs at ingest, and what it saves who reads.

`python -m benchmarks.layout [--rows 5000000]`: the same rows of a day, in arrival order, are written to tables that differ in
partitions, distribution and order. Each is then asked for one vehicle's history; ours for what has no outcome, by each join.
Ratios are to arrival order in day partitions, which is what Manifold writes.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.command import count_of
from benchmarks.lakes import vin_of
from benchmarks.machine import Cost, Row, cost_of, report
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT
from manifold.lake.catalog import open_catalog, where
from manifold.settings import Settings
from pipelines.spark.session import session

ROWS, VEHICLES = 5_000_000, 500_000
ROWS_PER_TRIGGER = 5000
ENDED_SHARE = 10
KEYS = ["vin", "seq"]
LOOK_UPS = 5


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to lay rows down: Iceberg's partitions, how rows go to tasks, and the order within a file."""

    what: str
    partitions: str = "days(ts)"
    distribution: str = "none"
    order: str = ""
    properties: str = ""


OURS = Layout("arrival order, day partitions")
LAYOUTS = (
    OURS,
    Layout("no partitions", partitions=""),
    Layout("hour partitions", partitions="hours(ts)"),
    Layout("16 buckets of VIN in each day", partitions="days(ts), bucket(16, vin)", distribution="hash"),
    Layout(
        "16 buckets of VIN in each day, sorted", partitions="days(ts), bucket(16, vin)", distribution="hash", order="vin, seq"
    ),
    Layout("each task sorts by VIN", order="vin, seq"),
    Layout("sorted by VIN over all tasks", distribution="range", order="vin, seq"),
    Layout("arrival order, files of 16 MiB", properties=", 'write.target-file-size-bytes' = '16777216'"),
)
JOINS = {"shuffled hash": "shuffle_hash", "sort-merge": "merge", "broadcast": "broadcast"}


class Bench:
    """A lake in which each layout has a table."""

    def __init__(self, spark: SparkSession, settings: Settings, folder: Path) -> None:
        self._spark, self._lake, self._folder = spark, settings.catalog_name, folder
        self._catalog: Catalog = open_catalog(settings)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._lake}.layout")

    def bring(self, rows: int) -> None:
        """The rows of a day, and the outcomes of a tenth of them, as files that every layout starts from."""
        noon = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000) - EPOCH_MS
        seq = sf.shiftleft(sf.lit(noon) + sf.floor(sf.col("id") / ROWS_PER_TRIGGER), TIME_SHIFT)
        made = self._spark.range(0, rows, 1, 8).select(
            sf.format_string("WMANF0LD%09d", sf.col("id") * 7919 % VEHICLES).alias("vin"),
            sf.timestamp_millis(sf.shiftright(seq, TIME_SHIFT) + EPOCH_MS).alias("ts"),
            sf.format_string("task_update_%d", sf.floor(sf.col("id") / ROWS_PER_TRIGGER)).alias("request_id"),
            seq.alias("seq"),
            sf.lit("firmware-1").alias("data_id"),
            sf.lit(True).alias("applied"),
        )
        made.write.parquet(self._file("rows"))
        ended = self._rows().where(sf.pmod(sf.hash(*KEYS), sf.lit(ENDED_SHARE)) == 0)
        ended.select(*KEYS).write.parquet(self._file("ended"))

    def create(self, number: int, layout: Layout) -> None:
        """An empty table of this layout."""
        columns = "vin string, ts timestamp, request_id string, seq bigint, data_id string, applied boolean"
        by = f"PARTITIONED BY ({layout.partitions})" if layout.partitions else ""
        codec = "'format-version' = '2', 'write.parquet.compression-codec' = 'zstd'"
        self._spark.sql(
            f"CREATE TABLE {self._name(number)} ({columns}) USING iceberg {by} TBLPROPERTIES ({codec}{layout.properties})"
        )
        if layout.order:
            self._spark.sql(f"ALTER TABLE {self._name(number)} WRITE ORDERED BY {layout.order}")
        properties = f"'write.distribution-mode' = '{layout.distribution}'"  # after the order, which would set its own
        self._spark.sql(f"ALTER TABLE {self._name(number)} SET TBLPROPERTIES ({properties})")

    def write(self, number: int) -> None:
        """All rows, in one commit."""
        self._rows().writeTo(self._name(number)).option("fanout-enabled", "true").append()

    def look_up(self, number: int) -> None:
        """The history of some vehicles."""
        table = self._catalog.load_table(f"layout.t{number}")
        for one in range(LOOK_UPS):
            table.scan(where(EqualTo, "vin", vin_of(one * 991))).to_arrow()

    def pending(self, number: int, hint: str) -> None:
        """What has no outcome, counted."""
        ended = self._spark.read.parquet(self._file("ended")).hint(hint)
        self._spark.table(self._name(number)).select(*KEYS).join(ended, KEYS, "left_anti").agg(sf.max("seq")).collect()

    def shape(self, number: int) -> str:
        """Files and megabytes of the table."""
        sizes = [task.file.file_size_in_bytes for task in self._catalog.load_table(f"layout.t{number}").scan().plan_files()]
        return f"{len(sizes)} files, {sum(sizes) / 1e6:.0f} MB"

    def _rows(self) -> DataFrame:
        return self._spark.read.parquet(self._file("rows"))

    def _file(self, name: str) -> str:
        return f"file://{self._folder}/{name}"

    def _name(self, number: int) -> str:
        return f"{self._lake}.layout.t{number}"


@contextmanager
def bench(rows: int) -> Iterator[Bench]:
    """A lake of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        settings = Settings(home=Path(folder) / "home", spark_driver_memory="4g")
        with session(settings, "bench") as spark:
            made = Bench(spark, settings, Path(folder))
            made.bring(rows)
            yield made


def run(rows: int = ROWS) -> list[Row]:
    """Measure each layout, and each join over ours."""
    found: list[Row] = []
    with bench(rows) as lake:
        lake.create(99, OURS)
        for _ in range(3):  # warm
            lake.write(99)
        lake.look_up(99)
        base: tuple[Cost, Cost] | None = None
        for number, layout in enumerate(LAYOUTS):
            lake.create(number, layout)
            cost = cost_of(lake.write, number), cost_of(lake.look_up, number)
            base = base or cost
            found.append(_row(f"{layout.what}: written", cost[0], base[0], f", {lake.shape(number)}"))
            found.append(_row("… a vehicle's history", cost[1], base[1]))
        lake.pending(0, "merge")  # warm
        joins = {kind: cost_of(lake.pending, 0, hint) for kind, hint in JOINS.items()}
        found += [_row(f"pending by {kind} join", cost, joins["shuffled hash"]) for kind, cost in joins.items()]
    return found


def _row(what: str, cost: Cost, base: Cost, more: str = "") -> Row:
    figure = f"{cost.wall_s:.2f} s, {cost.cpu_s:.1f} s of CPU{more}"
    return Row(what, figure, f"{cost.wall_s / base.wall_s:.2f}", cpu=f"{cost.cpu_s / base.cpu_s:.2f}")


if __name__ == "__main__":
    count = count_of(__doc__, "rows", ROWS)
    report("layout", f"{count:,} rows of a day, {VEHICLES:,} vehicles", run(count))
