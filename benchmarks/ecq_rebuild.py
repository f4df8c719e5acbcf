"""Live keys of compacted queues from the lake into an empty Redis: a rebuild without its ingest.

`python -m benchmarks.ecq_rebuild [--keys 10000000]`, ten keys a client; a tenth of the messages is acknowledged.
"""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import functions as sf

from benchmarks.command import count_of, in_a_folder
from benchmarks.lakes import empty_redis
from benchmarks.machine import Cost, Row, cost_of, report
from manifold.contracts import keys
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT, seq_of
from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from pipelines.populate.load import Populated, populate
from pipelines.spark.session import session

KEYS = 10_000_000
KEYS_PER_CLIENT = 10
ACKNOWLEDGED_SHARE = 10  # one message of so many
AIM_S = 90.0


def measure(count: int, folder: Path) -> list[Row]:
    """How long it takes, Spark cold, and what Redis holds afterwards."""
    with empty_redis(folder / "redis") as redis:
        port = redis.connection_pool.connection_kwargs["port"]
        settings = Settings(home=folder / "home", redis_port=port, spark_driver_memory="4g")
        catalog, now, done = open_catalog(settings), datetime.now(UTC), list[Populated]()
        ensure_tables(catalog)
        with session(settings, "bench") as spark:
            seq = sf.lit(seq_of(int(now.timestamp() * 1000) - count // 100 - 1000, 0, 0)) + sf.col("id") * (1 << TIME_SHIFT) / 100
            rows = spark.range(count).select(
                sf.format_string("client-%08d", sf.col("id") % (count // KEYS_PER_CLIENT)).alias("client_id"),
                seq.cast("bigint").alias("seq"),
                sf.format_string("setting/%d", sf.floor(sf.col("id") / (count // KEYS_PER_CLIENT))).alias("key"),
            )
            index = rows.withColumn("ts", sf.timestamp_millis(sf.shiftright("seq", TIME_SHIFT) + EPOCH_MS))
            table = f"{settings.catalog_name}.{ECQ_INDEX.identifier}"
            index.withColumn("applied", sf.lit(True)).writeTo(table).option("fanout-enabled", "true").append()
            acked = spark.table(table).where(sf.pmod(sf.hash("seq"), sf.lit(ACKNOWLEDGED_SHARE)) == 0)
            acked.select(
                "client_id",
                sf.col("seq").alias("acked_seq"),
                sf.col("ts").alias("acked_at"),
                sf.lit(0).cast("bigint").alias("epoch"),
                sf.lit("acknowledged").alias("kind"),
            ).writeTo(f"{settings.catalog_name}.{ECQ_STATE.identifier}").append()
            cost: Cost = cost_of(lambda: done.append(populate(spark, catalog, settings, now=now, everything=True)))
        assert (done[0].compacted, redis.hlen(keys.ecq_keys("client-00000000")[3])) == (count // KEYS_PER_CLIENT, KEYS_PER_CLIENT)
        used = int(redis.info("memory")["used_memory"]) / count
    aim_s = AIM_S * count / KEYS
    return [
        Row(
            "lake to Redis",
            f"{cost.wall_s:.1f} s",
            f"{count / cost.wall_s:,.0f} keys/s",
            f"≤ {aim_s:.0f} s",
            cost.wall_s <= aim_s,
        ),
        Row("CPU time", f"{cost.cpu_s:.1f} s", f"{cost.cpu_s / count * 1e6:.1f} µs a key"),
        Row("Redis, without payloads", f"{used:,.0f} bytes a key", ""),
    ]


def run(count: int = KEYS) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    return in_a_folder(measure, count)


if __name__ == "__main__":
    count = count_of(__doc__, "keys", KEYS)
    report("ecq-rebuild", f"{count:,} live keys, {KEYS_PER_CLIENT} a client", run(count))
