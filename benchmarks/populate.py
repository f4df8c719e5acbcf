"""Ten million pending entries from the lake into Redis and back, against redis-py alone: populate, rebuild, verify.

Populate and rebuild are compared with redis-py's variadic ZADD of entries that are in memory already, and verification with
redis-py reading every queue. The rebuild skips a tenth of the entries, which have ended; one rebuild is cancelled half-way and
done again. Verification runs where lake and queues agree, and where 1,000 vehicles have lost their queues, which it repairs.
Spark is warm, and each vehicle has twenty entries.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from benchmarks._archive import vin_of
from benchmarks._lakes import ENTRIES_PER_VEHICLE, Lake, end_some, full_lake, say_ingested, zadd_alone, zrange_alone
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
    """Measure each part with a lake and a Redis of its own."""
    entries = size.pick(full=10_000_000, small=200_000)
    rows = list[Row]()
    for part in (_populate, _rebuild, _verify):
        with TemporaryDirectory(prefix=PREFIX) as folder:
            rows += part(entries, Path(folder))
    return rows


def _populate(entries: int, folder: Path) -> Iterator[Row]:
    alone = zadd_alone(folder, entries)
    with full_lake(folder, entries) as lake:
        lake.redis.set(keys.LOADED, 1)
        done, ours = lake.populate()
        assert (done.queued, lake.redis.zcard(keys.pending(vin_of(0)))) == (entries, ENTRIES_PER_VEHICLE), done
    yield Row(ZADD, f"{entries / alone.wall_s:,.0f} entries/s")
    yield from speeds("populate", entries, "entries", ours, ZADD, alone)


def _rebuild(entries: int, folder: Path) -> Iterator[Row]:
    alone = zadd_alone(folder, entries)
    with full_lake(folder, entries) as lake:
        pending = end_some(lake)
        done, ours = lake.populate(everything=True)
        assert (done.queued, lake.redis.exists(keys.LOADED)) == (pending, 1), done
        lake.redis.flushall()
        _cancel_half_way(lake)
        _, resumed = lake.populate(everything=True)
        assert lake.redis.exists(keys.LOADED)
        assert lake.redis.zcard(keys.pending(vin_of(0))) > 0
    share = pending / entries
    yield from speeds("rebuild", pending, "entries", ours, ZADD, Cost(share * alone.wall_s, share * alone.cpu_s))
    yield Row(f"rebuild, a tenth of {entries:,} entries ended", f"{ours.wall_s:.0f} s", value=ours.wall_s)
    yield Row("rebuild after one that was cancelled half-way", f"{resumed.wall_s:.0f} s", "rebuild", resumed.wall_s / ours.wall_s)


def _cancel_half_way(lake: Lake) -> None:
    """Cancel Spark's jobs when half of the vehicles have their queue."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
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
        ended.set()
        watcher.join()


def _verify(entries: int, folder: Path) -> Iterator[Row]:
    with full_lake(folder, entries) as lake:
        pending = end_some(lake)
        say_ingested(lake)
        lake.populate(everything=True)
        alone = cost_of(zrange_alone, lake.redis, lake.vehicles)
        same, agreed = _verified(lake)
        assert (same.agree, same.in_queues, same.too_young) == (True, pending, 0), same
        lost = sum(lake.redis.zcard(keys.pending(vin_of(n))) for n in range(LOST))
        lake.redis.delete(*(keys.pending(vin_of(n)) for n in range(LOST)))
        after, repaired = _verified(lake, repair=True)
        assert (after.agree, after.repaired) == (True, {"missing": lost}), after
    for what, cost in (
        (f"verification of {entries:,} entries", agreed),
        (f"verification and repair of {LOST:,} queues", repaired),
    ):
        yield Row(what, f"{cost.wall_s:.0f} s", ZRANGE, cost.wall_s / alone.wall_s, cost.wall_s)


def _verified(lake: Lake, *, repair: bool = False) -> tuple[Verified, Cost]:
    done: list[Verified] = []
    cost = cost_of(lambda: done.append(verify(lake.spark, lake.catalog, lake.settings, now=lake.now, repair=repair)))
    return done[0], cost
