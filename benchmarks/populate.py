"""Populate from the lake against redis-py's variadic ZADD alone.

`python -m benchmarks.populate [--entries 10000000]`, twenty entries a vehicle.
"""

from pathlib import Path

from benchmarks.command import count_of, in_a_folder
from benchmarks.lakes import ENTRIES, ENTRIES_PER_VEHICLE, full_lake, vin_of, zadd_alone
from benchmarks.machine import Row, report
from manifold.contracts import keys

AIM = 0.4


def measure(entries: int, folder: Path) -> list[Row]:
    """One after the other."""
    alone = zadd_alone(folder, entries)
    with full_lake(folder, entries) as lake:
        lake.redis.set(keys.LOADED, 1)
        done, ours = lake.populate()
        assert (done.queued, lake.redis.zcard(keys.pending(vin_of(0)))) == (entries, ENTRIES_PER_VEHICLE), done
    ratio, of_cpu = alone.wall_s / ours.wall_s, alone.cpu_s / ours.cpu_s
    return [
        Row("redis-py variadic ZADD alone", f"{entries / alone.wall_s:,.0f} entries/s", "1.00", cpu="1.00"),
        Row("populate", f"{entries / ours.wall_s:,.0f} entries/s", f"{ratio:.2f}", f"≥ {AIM}", ratio >= AIM, f"{of_cpu:.2f}"),
    ]


def run(entries: int = ENTRIES) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    return in_a_folder(measure, entries)


if __name__ == "__main__":
    entries = count_of(__doc__, "entries", ENTRIES)
    report("populate", f"{entries:,} entries, {ENTRIES_PER_VEHICLE} a vehicle", run(entries))
