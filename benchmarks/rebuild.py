"""A rebuild of wiped queues from the lake, against redis-py's variadic ZADD alone; one that is killed half-way; verification.

`python -m benchmarks.rebuild [--entries 10000000]`: so many entries, twenty a vehicle, of which a tenth have ended.
`--verify`: the queues that a rebuild has filled are compared with the lake, against redis-py reading them and nothing else.
"""

import argparse
import tempfile
import threading
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from benchmarks.lakes import (
    ENTRIES,
    ENTRIES_PER_VEHICLE,
    Lake,
    end_some,
    full_lake,
    say_ingested,
    vin_of,
    zadd_alone,
    zrange_alone,
)
from benchmarks.machine import Cost, Row, cost_of, report
from manifold.contracts import keys
from pipelines.maintenance.verify import Verified, verify

AIM, WITHIN_S = 0.5, 60
TAKEN_OUT = 1000  # vehicles that lose their queue, for a verification that finds something


def killed_half_way(lake: Lake) -> int:
    """Cancel Spark's jobs when half of the vehicles have their queue; how many keys there were by then."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            if lake.redis.dbsize() >= lake.vehicles // 2:
                lake.spark.sparkContext.cancelAllJobs()
                return

    watcher = threading.Thread(target=watch, name="bench-kill")
    watcher.start()
    try:
        lake.populate(everything=True)
    except (PySparkException, Py4JError):
        assert not lake.redis.exists(keys.LOADED), "queues that are half loaded must not say that they are loaded"
    finally:
        ended.set()
        watcher.join()
    return lake.redis.dbsize()


def measure(entries: int, folder: Path) -> list[Row]:
    """Each on an empty Redis."""
    alone = zadd_alone(folder, entries)
    with full_lake(folder, entries) as lake:
        pending = end_some(lake)
        done, ours = lake.populate(everything=True)
        assert (done.queued, lake.redis.exists(keys.LOADED)) == (pending, 1), done
        lake.redis.flushall()
        there = killed_half_way(lake)
        _, resumed = lake.populate(everything=True)
        assert lake.redis.exists(keys.LOADED)
        assert lake.redis.zcard(keys.pending(vin_of(0))) > 0
    share = pending / entries
    ratio, of_cpu = share * alone.wall_s / ours.wall_s, share * alone.cpu_s / ours.cpu_s
    speed = f"{pending / ours.wall_s:,.0f} entries/s"
    return [
        Row("redis-py variadic ZADD alone", f"{entries / alone.wall_s:,.0f} entries/s", "1.00", cpu="1.00"),
        Row("rebuild", speed, f"{ratio:.2f}", f"≥ {AIM}", ratio >= AIM, f"{of_cpu:.2f}"),
        Row(f"rebuild of {pending:,} entries", f"{ours.wall_s:.0f} s", "", f"≤ {WITHIN_S} s", ours.wall_s <= WITHIN_S),
        Row(f"killed with {there:,} keys in Redis, done again", f"{resumed.wall_s:.0f} s", f"{resumed.wall_s / ours.wall_s:.2f}"),
    ]


def measure_verification(entries: int, folder: Path) -> list[Row]:
    """First where nothing differs, then where some vehicles have lost their queues; with the repair."""
    with full_lake(folder, entries) as lake:
        pending = end_some(lake)
        say_ingested(lake)
        lake.populate(everything=True)
        alone = cost_of(zrange_alone, lake.redis, lake.vehicles)
        same, agreed = _verified(lake)
        assert (same.agree, same.in_queues, same.too_young) == (True, pending, 0), same
        lost = sum(lake.redis.zcard(keys.pending(vin_of(n))) for n in range(TAKEN_OUT))
        lake.redis.delete(*(keys.pending(vin_of(n)) for n in range(TAKEN_OUT)))
        after, repaired = _verified(lake, repair=True)
        assert (after.agree, after.repaired) == (True, {"missing": lost}), after
    return [
        Row("redis-py reads all queues", f"{pending / alone.wall_s:,.0f} entries/s", "1.00", cpu="1.00"),
        _compared(f"verification of {pending:,} entries", pending, agreed, alone),
        _compared(f"the same, {lost:,} missing, with their repair", pending, repaired, alone),
    ]


def _verified(lake: Lake, *, repair: bool = False) -> tuple[Verified, Cost]:
    done: list[Verified] = []
    cost = cost_of(lambda: done.append(verify(lake.spark, lake.catalog, lake.settings, now=lake.now, repair=repair)))
    return done[0], cost


def _compared(what: str, entries: int, cost: Cost, alone: Cost) -> Row:
    speed = f"{cost.wall_s:.0f} s, {entries / cost.wall_s:,.0f} entries/s"
    return Row(what, speed, f"{alone.wall_s / cost.wall_s:.2f}", cpu=f"{alone.cpu_s / cost.cpu_s:.2f}")


def run(entries: int = ENTRIES, *, verification: bool = False) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        return (measure_verification if verification else measure)(entries, Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    report(
        "verify" if options.verify else "rebuild",
        f"{options.entries:,} entries, {ENTRIES_PER_VEHICLE} a vehicle, a tenth of them ended",
        run(options.entries, verification=options.verify),
    )
