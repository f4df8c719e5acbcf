"""A lake of pending entries with an empty Redis beside it; and the cost of writing the same entries with redis-py alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from redis import Redis

from benchmarks._archive import vin_of
from benchmarks._measure import Cost, cost_of
from benchmarks._servers import start_redis
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT, seq_of
from manifold.contracts.tables import IDS, OUTCOMES, SEGMENTS
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from pipelines.populate.load import Populated, populate
from pipelines.spark.session import session

ENTRIES_PER_VEHICLE = 20
VINS_PER_TRIGGER = 5000
VEHICLES_PER_FLUSH = 500
ENDED_ONE_OF = 10  # one entry in ten has ended
WARM_ENTRIES = VEHICLES_PER_FLUSH * ENTRIES_PER_VEHICLE * 10


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake of pending entries, and an empty Redis beside it."""

    spark: SparkSession
    catalog: Catalog
    settings: Settings
    redis: Redis
    now: datetime
    entries: int

    @property
    def vehicles(self) -> int:
        """Vehicles that have entries."""
        return self.entries // ENTRIES_PER_VEHICLE

    def populate(self, *, everything: bool = False) -> tuple[Populated, Cost]:
        """Populate the queues, or with `everything` rebuild them; return the result and the cost."""
        results: list[Populated] = []

        def work() -> None:
            results.append(populate(self.spark, self.catalog, self.settings, now=self.now, everything=everything))

        cost = cost_of(work)
        return results[0], cost


@contextmanager
def full_lake(folder: Path, entries: int) -> Iterator[Lake]:
    """Provide a lake of `entries` entries. A smaller load warms Spark up first, because a rebuild begins with an ingest."""
    with empty_redis(folder / "redis") as redis:
        port = redis.connection_pool.connection_kwargs["port"]
        settings = Settings(home=folder / "home", redis_port=port, spark_driver_memory="4g")
        catalog = open_catalog(settings)
        with session(settings, "bench") as spark:
            lake = Lake(spark, catalog, settings, redis, datetime.now(UTC), entries)
            fill(lake, WARM_ENTRIES)
            lake.populate(everything=True)
            redis.flushall()
            catalog.drop_table(IDS.identifier)
            fill(lake, entries)
            yield lake


def fill(lake: Lake, entries: int) -> None:
    """Write entries in the order of their triggers. Each trigger has `VINS_PER_TRIGGER` vehicles, each vehicle twenty entries."""
    ensure_tables(lake.catalog)
    vehicles = entries // ENTRIES_PER_VEHICLE
    first = seq_of(int(lake.now.timestamp() * 1000) - entries // VINS_PER_TRIGGER - 1000, 0, 0)
    trigger = sf.floor(sf.col("id") / VINS_PER_TRIGGER)
    seq = sf.lit(first) + trigger * (1 << TIME_SHIFT)
    rows = lake.spark.range(entries).select(
        sf.format_string("WMANF0LD%09d", sf.col("id") % vehicles).alias("vin"),
        sf.timestamp_millis(sf.shiftright(seq, TIME_SHIFT) + EPOCH_MS).alias("ts"),
        sf.format_string("task_update_%d", trigger).alias("request_id"),
        seq.alias("seq"),
        sf.format_string("firmware-%d", trigger % 50).alias("data_id"),
        sf.lit(False).alias("applied"),
    )
    rows.writeTo(f"{lake.settings.catalog_name}.{IDS.identifier}").option("fanout-enabled", "true").append()


def end_some(lake: Lake) -> int:
    """Write the outcome `delivered` for about a tenth of the entries; return the number of entries that are still pending."""
    ids = lake.spark.table(f"{lake.settings.catalog_name}.{IDS.identifier}")
    ended = ids.where(sf.pmod(sf.hash("vin", "seq"), sf.lit(ENDED_ONE_OF)) == 0)
    rows = ended.select(
        "vin",
        "seq",
        sf.lit("delivered").alias("outcome"),
        sf.col("ts").alias("accepted_at"),
        sf.col("ts").alias("dispatched_at"),
        sf.col("ts").alias("acknowledged_at"),
        sf.col("ts").alias("ended_at"),
        sf.lit(1).alias("attempts"),
        sf.lit(None).cast("string").alias("reason"),
    )
    outcomes = f"{lake.settings.catalog_name}.{OUTCOMES.identifier}"
    rows.writeTo(outcomes).option("fanout-enabled", "true").append()
    return lake.entries - lake.spark.table(outcomes).count()


def record_segment(lake: Lake) -> None:
    """Record an ingested segment that contains all entries. Without it, verification would skip every entry as too young."""
    last = seq_of(int(lake.now.timestamp() * 1000), 0, 0)
    segment = {"path": "bench", "stream": Stream.TRIGGER.value, "messages": 1, "first_seq": 1, "last_seq": last}
    row = segment | {"run_id": "bench", "ingested_at": lake.now}
    lake.catalog.load_table(SEGMENTS.identifier).append(pa.Table.from_pylist([row], schema=SEGMENTS.arrow_schema))


def zadd_alone(folder: Path, entries: int) -> Cost:
    """Return the cost of one ZADD for each vehicle, on an empty Redis. The entries are grouped by vehicle beforehand."""
    with empty_redis(folder / "alone") as redis:
        return cost_of(_zadd, redis, entries)


def _zadd(redis: Redis, entries: int) -> None:
    seqs = [seq_of(EPOCH_MS + 1_000_000 + number, 0, 0) for number in range(ENTRIES_PER_VEHICLE)]
    members = {str(seq): seq for seq in seqs}
    vehicles = entries // ENTRIES_PER_VEHICLE
    for first in range(0, vehicles, VEHICLES_PER_FLUSH):
        pipe = redis.pipeline(transaction=False)
        for number in range(first, min(first + VEHICLES_PER_FLUSH, vehicles)):
            pipe.zadd(keys.pending(vin_of(number)), members)
        pipe.execute()


def zrange_alone(redis: Redis, vehicles: int) -> None:
    """Read every queue, and do nothing with the entries."""
    for first in range(0, vehicles, VEHICLES_PER_FLUSH):
        pipe = redis.pipeline(transaction=False)
        for number in range(first, min(first + VEHICLES_PER_FLUSH, vehicles)):
            pipe.zrange(keys.pending(vin_of(number)), 0, -1)
        pipe.execute()


@contextmanager
def empty_redis(folder: Path) -> Iterator[Redis]:
    """Start a new Redis, so that memory that one measurement has used does not affect the next one."""
    with start_redis(folder) as server, Redis(port=server.port) as redis:
        yield redis
