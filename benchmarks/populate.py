"""Populate from the lake against redis-py's variadic ZADD alone.

`python -m benchmarks.populate [--entries 10000000]`, twenty entries a vehicle.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from redis import Redis

from adapters.lake import ensure_tables, open_catalog
from benchmarks.machine import Row, cost_of, report
from contracts import keys
from contracts.seq import EPOCH_MS, TIME_SHIFT, seq_of
from contracts.settings import Settings
from contracts.tables import IDS
from pipelines.populate.load import populate
from pipelines.spark.session import session
from tests.servers import start_redis, stopping

ENTRIES_A_VEHICLE = 20
VINS_A_TRIGGER = 5000
VEHICLES_A_FLUSH = 500
AIM = 0.4
ENTRIES = 10_000_000


def vin_of(number: int) -> str:
    return f"WMANF0LD{number:09d}"


def fill_lake(spark: SparkSession, catalog: Catalog, settings: Settings, entries: int, now: datetime) -> None:
    """Entries in the order in which triggers bring them: a trigger's vehicles together, each vehicle in twenty triggers."""
    ensure_tables(catalog)
    vehicles = entries // ENTRIES_A_VEHICLE
    first = seq_of(int(now.timestamp() * 1000) - entries // VINS_A_TRIGGER - 1000, 0, 0)
    trigger = sf.floor(sf.col("id") / VINS_A_TRIGGER)
    seq = sf.lit(first) + trigger * (1 << TIME_SHIFT)
    rows = spark.range(entries).select(
        sf.format_string("WMANF0LD%09d", sf.col("id") % vehicles).alias("vin"),
        sf.timestamp_millis(sf.shiftright(seq, TIME_SHIFT) + EPOCH_MS).alias("ts"),
        sf.format_string("task_update_%d", trigger).alias("request_id"),
        seq.alias("seq"),
        sf.format_string("firmware-%d", trigger % 50).alias("data_id"),
        sf.lit(False).alias("applied"),
    )
    rows.writeTo(f"{settings.catalog_name}.{IDS.identifier}").option("fanout-enabled", "true").append()


def zadd_alone(redis: Redis, entries: int) -> None:
    """One ZADD a vehicle, grouped beforehand, and nothing else."""
    seqs = [seq_of(EPOCH_MS + 1_000_000 + n, 0, 0) for n in range(ENTRIES_A_VEHICLE)]
    members = {str(seq): seq for seq in seqs}
    vehicles = entries // ENTRIES_A_VEHICLE
    for first in range(0, vehicles, VEHICLES_A_FLUSH):
        pipe = redis.pipeline(transaction=False)
        for number in range(first, min(first + VEHICLES_A_FLUSH, vehicles)):
            pipe.zadd(keys.pending(vin_of(number)), members)
        pipe.execute()


@contextmanager
def empty_redis(folder: Path) -> Iterator[Redis]:
    """A Redis of its own, so that neither measurement pays for the other's memory."""
    with stopping(start_redis(folder)) as server, Redis(port=server.port) as redis:
        yield redis


def measure(entries: int, folder: Path) -> list[Row]:
    """Both on a Redis of their own; Spark is warm, as it is after an ingest."""
    now = datetime.now(UTC)
    with empty_redis(folder / "alone") as redis:
        alone_s = cost_of(zadd_alone, redis, entries).wall_s
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
            ours_s = cost_of(populate, spark, catalog, settings, now=now).wall_s
        assert redis.zcard(keys.pending(vin_of(0))) == ENTRIES_A_VEHICLE
    ratio = alone_s / ours_s
    return [
        Row("redis-py variadic ZADD alone", f"{entries / alone_s:,.0f} entries/s", "1.00"),
        Row("populate", f"{entries / ours_s:,.0f} entries/s", f"{ratio:.2f}", f"≥ {AIM}", ratio >= AIM),
    ]


def run(entries: int = ENTRIES) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        return measure(entries, Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    entries = parser.parse_args().entries
    report("populate", f"{entries:,} entries, {ENTRIES_A_VEHICLE} a vehicle", run(entries))
