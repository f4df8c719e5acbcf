"""Ten million pending entries from the lake into Redis and back, against redis-py alone: populate, rebuild, verify.

Populate and rebuild are compared with redis-py's variadic ZADD of entries that are already in memory. Verification is compared
with reading every queue by redis-py. The rebuild skips a tenth of the entries, which have ended. Another rebuild is cancelled
half-way and done again. Verification runs once while lake and queues agree, and once after 1,000 vehicles have lost their queues,
which it repairs. Spark is warm, and each vehicle has twenty entries.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from benchmarks._archive import vin_of
from benchmarks._lakes import ENTRIES_PER_VEHICLE, Lake, end_some, full_lake, record_segment, zadd_alone, zrange_alone
from benchmarks._measure import Cost, Row, Size, at_least, at_most, cost_of, speeds
from benchmarks._servers import PREFIX
from manifold.contracts import keys
from pipelines.maintenance.verify import Verified, verify

AIMS = {
    "populate, by the clock": at_least(0.4),
    "rebuild, by the clock": at_least(0.5),
    "rebuild, a tenth of 10,000,000 entries ended": at_most(60, "s"),
    "verification of 10,000,000 entries": at_most(25, "s"),
}
ZADD, ZRANGE = "redis-py, variadic ZADD", "redis-py, ZRANGE of all queues"
LOST = 1000  # vehicles that lose their queue


def run(size: Size) -> list[Row]:
    """Measure each part with a new lake and a new Redis."""
    entries = size.pick(full=10_000_000, small=200_000)
    rows = list[Row]()
    for part in (_populate, _rebuild, _verify):
        with TemporaryDirectory(prefix=PREFIX) as folder:
            rows += part(entries, Path(folder))
    return rows


def _populate(entries: int, folder: Path) -> Iterator[Row]:
    zadd = zadd_alone(folder, entries)
    with full_lake(folder, entries) as lake:
        lake.redis.set(keys.LOADED, 1)
        result, cost = lake.populate()
        assert (result.queued, lake.redis.zcard(keys.pending(vin_of(0)))) == (entries, ENTRIES_PER_VEHICLE), result
    yield Row(ZADD, f"{entries / zadd.wall_s:,.0f} entries/s")
    yield from speeds("populate", entries, "entries", cost, ZADD, zadd)


def _rebuild(entries: int, folder: Path) -> Iterator[Row]:
    zadd = zadd_alone(folder, entries)
    with full_lake(folder, entries) as lake:
        pending = end_some(lake)
        result, cost = lake.populate(everything=True)
        assert (result.queued, lake.redis.exists(keys.LOADED)) == (pending, 1), result
        lake.redis.flushall()
        _cancel_half_way(lake)
        _, second_cost = lake.populate(everything=True)
        assert lake.redis.exists(keys.LOADED)
        assert lake.redis.zcard(keys.pending(vin_of(0))) > 0
    share = pending / entries
    zadd_of_pending = Cost(share * zadd.wall_s, share * zadd.cpu_s)
    yield from speeds("rebuild", pending, "entries", cost, ZADD, zadd_of_pending)
    yield Row(f"rebuild, a tenth of {entries:,} entries ended", f"{cost.wall_s:.0f} s", value=cost.wall_s)
    what = "rebuild after one that was cancelled half-way"
    yield Row(what, f"{second_cost.wall_s:.0f} s", "rebuild", second_cost.wall_s / cost.wall_s)


def _cancel_half_way(lake: Lake) -> None:
    """Start a rebuild, and cancel its Spark jobs once half of the vehicles have their queue."""
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.05):
            if lake.redis.dbsize() >= lake.vehicles // 2:
                lake.spark.sparkContext.cancelAllJobs()
                return

    watcher = threading.Thread(target=watch, name="bench-cancel")
    watcher.start()
    try:
        lake.populate(everything=True)
    except (PySparkException, Py4JError):
        assert not lake.redis.exists(keys.LOADED), "queues that are half loaded must not be marked as loaded"
    finally:
        has_ended.set()
        watcher.join()


def _verify(entries: int, folder: Path) -> Iterator[Row]:
    with full_lake(folder, entries) as lake:
        pending = end_some(lake)
        record_segment(lake)
        lake.populate(everything=True)
        zrange = cost_of(zrange_alone, lake.redis, lake.vehicles)
        verified, verify_cost = _verified(lake)
        assert (verified.agree, verified.in_queues, verified.too_young) == (True, pending, 0), verified
        lost_queues = [keys.pending(vin_of(number)) for number in range(LOST)]
        lost_entries = sum(lake.redis.zcard(queue) for queue in lost_queues)
        lake.redis.delete(*lost_queues)
        repaired, repair_cost = _verified(lake, repair=True)
        assert (repaired.agree, repaired.repaired) == (True, {"missing": lost_entries}), repaired
    for what, cost in (
        (f"verification of {entries:,} entries", verify_cost),
        (f"verification and repair of {LOST:,} queues", repair_cost),
    ):
        yield Row(what, f"{cost.wall_s:.0f} s", ZRANGE, cost.wall_s / zrange.wall_s, cost.wall_s)


def _verified(lake: Lake, *, repair: bool = False) -> tuple[Verified, Cost]:
    results: list[Verified] = []
    cost = cost_of(lambda: results.append(verify(lake.spark, lake.catalog, lake.settings, now=lake.now, repair=repair)))
    return results[0], cost
