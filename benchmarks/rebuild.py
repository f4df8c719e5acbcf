"""A rebuild of wiped queues from the lake, against redis-py's variadic ZADD alone; and one that is killed half-way.

`python -m benchmarks.rebuild [--entries 10000000]` pending entries, twenty a vehicle, and a tenth as many that have ended.
"""

import argparse
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JError
from pyiceberg.catalog import Catalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from redis import Redis

from adapters.lake import open_catalog
from benchmarks.machine import Row, cost_of, report
from benchmarks.populate import ENTRIES_A_VEHICLE, VEHICLES_A_FLUSH, empty_redis, fill_lake, vin_of, zadd_alone
from contracts import keys
from contracts.settings import Settings
from contracts.tables import IDS, OUTCOMES
from pipelines.populate.load import Populated, populate
from pipelines.spark.session import session

AIM, WITHIN_S = 0.5, 60
ENTRIES = 10_000_000
ENDED_SHARE = 10  # one entry of so many has ended


def end_some(spark: SparkSession, settings: Settings) -> int:
    """The oldest entries of each vehicle were delivered: as many as the share says; how many are still pending."""
    ids = spark.table(f"{settings.catalog_name}.{IDS.identifier}")
    ended = ids.where(sf.pmod(sf.hash("vin", "seq"), sf.lit(ENDED_SHARE)) == 0)
    nothing = sf.lit(None)
    rows = ended.select(
        "vin",
        "seq",
        sf.lit("delivered").alias("outcome"),
        sf.col("ts").alias("accepted_at"),
        sf.col("ts").alias("dispatched_at"),
        sf.col("ts").alias("acknowledged_at"),
        sf.col("ts").alias("ended_at"),
        sf.lit(1).alias("attempts"),
        nothing.cast("string").alias("reason"),
    )
    rows.writeTo(f"{settings.catalog_name}.{OUTCOMES.identifier}").option("fanout-enabled", "true").append()
    return ids.count() - spark.table(f"{settings.catalog_name}.{OUTCOMES.identifier}").count()


def killed_half_way(spark: SparkSession, catalog: Catalog, settings: Settings, redis: Redis, now: datetime, vehicles: int) -> int:
    """Cancel Spark's jobs when half of the vehicles have their queue; how many had by then."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            if redis.dbsize() >= vehicles // 2:
                spark.sparkContext.cancelAllJobs()
                return

    watcher = threading.Thread(target=watch, name="bench-kill")
    watcher.start()
    try:
        populate(spark, catalog, settings, now=now, everything=True)
    except (PySparkException, Py4JError):
        assert not redis.exists(keys.LOADED), "queues that are half loaded must not say that they are loaded"
    finally:
        ended.set()
        watcher.join()
    return redis.dbsize()


def measure(entries: int, folder: Path) -> list[Row]:
    """Both on a Redis of their own; Spark is warm, as it is after the ingest with which a rebuild begins."""
    now = datetime.now(UTC)
    with empty_redis(folder / "alone") as redis:
        alone = cost_of(zadd_alone, redis, entries)
    with empty_redis(folder / "redis") as redis:
        port = redis.connection_pool.connection_kwargs["port"]
        settings = Settings(home=folder / "home", redis_port=port, spark_driver_memory="4g")
        catalog = open_catalog(settings)
        with session(settings, "bench") as spark:
            fill_lake(spark, catalog, settings, VEHICLES_A_FLUSH * ENTRIES_A_VEHICLE * 10, now)
            populate(spark, catalog, settings, now=now, everything=True)
            redis.flushall()
            catalog.drop_table(IDS.identifier)
            fill_lake(spark, catalog, settings, entries, now)
            pending = end_some(spark, settings)
            done: list[Populated] = []
            ours = cost_of(lambda: done.append(populate(spark, catalog, settings, now=now, everything=True)))
            assert (done[0].queued, redis.exists(keys.LOADED)) == (pending, 1), done
            redis.flushall()
            there = killed_half_way(spark, catalog, settings, redis, now, entries // ENTRIES_A_VEHICLE)
            resumed = cost_of(lambda: done.append(populate(spark, catalog, settings, now=now, everything=True)))
            assert redis.exists(keys.LOADED)
            assert redis.zcard(keys.pending(vin_of(0))) > 0
    share = pending / entries
    ratio, of_cpu = share * alone.wall_s / ours.wall_s, share * alone.cpu_s / ours.cpu_s
    speed = f"{pending / ours.wall_s:,.0f} entries/s"
    return [
        Row("redis-py variadic ZADD alone", f"{entries / alone.wall_s:,.0f} entries/s", "1.00", cpu="1.00"),
        Row("rebuild", speed, f"{ratio:.2f}", f"≥ {AIM}", ratio >= AIM, f"{of_cpu:.2f}"),
        Row(f"rebuild of {pending:,} entries", f"{ours.wall_s:.0f} s", "", f"≤ {WITHIN_S} s", ours.wall_s <= WITHIN_S),
        Row(f"killed with {there:,} keys in Redis, done again", f"{resumed.wall_s:.0f} s", f"{resumed.wall_s / ours.wall_s:.2f}"),
    ]


def run(entries: int = ENTRIES) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        return measure(entries, Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    entries = parser.parse_args().entries
    report("rebuild", f"{entries:,} entries, a tenth of them ended, {ENTRIES_A_VEHICLE} a vehicle", run(entries))
