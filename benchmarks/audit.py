"""An audit with all its rules, pages and results, beside a hand-written aggregation of the same questions in bare Spark.

`python -m benchmarks.audit [--rows 10000000]`: a run that adds so many rows to `sdv_fanout_ids`, the table that has the most.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks.command import count_of, in_a_folder
from benchmarks.machine import Cost, Row, cost_of, report
from expectations import audit, results_of
from expectations._rows import is_iso_3779
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT, seq_of
from manifold.contracts.tables import DATA, IDS, META
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.reports import open_reports
from manifold.settings import Settings
from pipelines.spark.session import session
from tests.support.lake_rows import append_payloads

ROWS = 10_000_000
VINS_PER_TRIGGER, DATA_IDS = 5000, 50
PAYLOADS = {f"firmware-{number}": b"x" * 1000 for number in range(DATA_IDS)}  # that triggers of the benchmarks name
AIM = 2.0
ROUNDS = 2


def fill(spark: SparkSession, catalog: Catalog, settings: Settings, rows: int, now: datetime) -> None:
    """Entries as ingest writes them, and the data that they are about."""
    ensure_tables(catalog)
    first = seq_of(int(now.timestamp() * 1000) - 86_400_000, 0, 0)
    trigger = sf.floor(sf.col("id") / VINS_PER_TRIGGER)
    seq = sf.lit(first) + trigger * (1 << TIME_SHIFT)
    entries = spark.range(rows).select(
        sf.format_string("WMANF0LD%09d", sf.col("id") * 7919 % 10**9).alias("vin"),
        sf.timestamp_millis(sf.shiftright(seq, TIME_SHIFT) + EPOCH_MS).alias("ts"),
        sf.format_string("task_update_%d", trigger).alias("request_id"),
        seq.alias("seq"),
        sf.format_string("firmware-%d", trigger % DATA_IDS).alias("data_id"),
        sf.lit(True).alias("applied"),
    )
    entries.writeTo(f"{settings.catalog_name}.{IDS.identifier}").option("fanout-enabled", "true").append()
    append_payloads(catalog, PAYLOADS, at=now)


def by_hand(spark: SparkSession, catalog_name: str) -> None:
    """Counts for every rule of the table: one pass for those about a row, one for uniqueness, one for the look-up."""
    ids, names = f"{catalog_name}.{IDS.identifier}", f"{catalog_name}.{META.identifier}"
    present = " OR ".join(f"{column.name} IS NULL" for column in IDS.columns)
    rules = [
        present,
        f"unix_millis(ts) <> shiftright(seq, {TIME_SHIFT}) + {EPOCH_MS}",
        "NOT (length(vin) BETWEEN 1 AND 64 AND NOT vin RLIKE '[^!-~]|[+#/]')",
        "ts NOT BETWEEN timestamp'2020-01-01' AND now()",
    ]
    counts = [sf.count_if(sf.expr(rule)) for rule in rules]
    spark.table(ids).agg(sf.count("*"), *counts, sf.count_if(~is_iso_3779(sf.col("vin")))).collect()
    spark.sql(f"SELECT count(*) FROM (SELECT 1 FROM {ids} GROUP BY vin, seq HAVING count(*) > 1)").collect()
    spark.sql(f"SELECT count(*) FROM (SELECT DISTINCT data_id FROM {ids}) LEFT ANTI JOIN {names} USING (data_id)").collect()


def whole_audit(spark: SparkSession, settings: Settings, number: int, now: datetime) -> None:
    """What a run's audit does with this table."""
    tables = {table.name: spark.table(f"{settings.catalog_name}.{table.identifier}") for table in (IDS, META)}
    result = audit(
        {IDS.name: tables[IDS.name]},
        run_id=f"bench-{number}",
        as_of=now,
        reports=open_reports(settings),
        keep=10,
        references=tables,
        data_wait=timedelta(hours=1),
    )
    assert result.passed, result
    assert len(results_of(result, now))


def measure(rows: int, folder: Path) -> list[Row]:
    """Both in turn over the same rows, after one small audit that loads what an audit loads."""
    now = datetime.now(UTC)
    settings = Settings(home=folder / "home", spark_driver_memory="4g")
    catalog = open_catalog(settings)
    hand = ours = Cost()
    with session(settings, "bench") as spark:
        fill(spark, catalog, settings, VINS_PER_TRIGGER * 20, now)
        by_hand(spark, settings.catalog_name)
        whole_audit(spark, settings, 0, now)
        for table in (IDS, DATA, META):
            catalog.drop_table(table.identifier)
        fill(spark, catalog, settings, rows, now)
        for number in range(1, ROUNDS + 1):
            hand += cost_of(by_hand, spark, settings.catalog_name)
            ours += cost_of(whole_audit, spark, settings, number, now)
    ratio, cpu = ours.wall_s / hand.wall_s, ours.cpu_s / hand.cpu_s
    return [
        Row("aggregation by hand", f"{hand.wall_s / ROUNDS:.1f} s", "1.00", cpu="1.00"),
        Row("audit", f"{ours.wall_s / ROUNDS:.1f} s", f"{ratio:.2f}", f"≤ {AIM}", ratio <= AIM, f"{cpu:.2f}"),
    ]


def run(rows: int = ROWS) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    return in_a_folder(measure, rows)


if __name__ == "__main__":
    rows = count_of(__doc__, "rows", ROWS)
    report("audit", f"{rows:,} rows of {IDS.name}", run(rows))
