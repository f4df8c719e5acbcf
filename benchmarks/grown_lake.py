"""A five-minute run into a lake that has grown for a year, against the same run into a fresh lake.

Every table of the grown lake is as ingest and compaction leave it: 20,000 entries, 8,640 segments and 20 payloads a day. Each
lake has a driver of its own, `python -m benchmarks.grown_lake HOME`, and they take turns. Rows are medians of whole runs
(discover, write, audit, publish). Memory is the peak of driver, JVM and workers; the JVM takes within 2 GiB what its collector
finds convenient, so the heap that remains after a collection is reported, too.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Self

import psutil
from pyspark.sql import SparkSession

from benchmarks._archive import data, outcome, trigger, vin_of, write_segment
from benchmarks._measure import Cost, Row, Size, at_most, cost_of
from benchmarks._servers import PREFIX
from benchmarks._year import FIVE_MINUTES_MS, NOON_MS, PAYLOAD, Growth, grow
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import IDS
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from pipelines.ingest.chunks import ingest_audit_publish
from pipelines.ingest.discover import discover
from pipelines.ingest.run import Run as IngestRun
from pipelines.spark.session import GREAT_EXPECTATIONS, session

SEGMENT_MS = 30_000
RUN_VINS = 200  # of each trigger of the measured runs
WARM_UP_RUNS = 2  # of each driver
LOOK_S = 0.05
FRESH = "a fresh lake"
AIMS = {"a run into a lake of 365 days, by the clock": at_most(1.15), "a run into a lake of 365 days, by CPU": at_most(1.15)}


def run(size: Size) -> list[Row]:
    """Measure in a folder that is deleted afterwards."""
    growth = Growth(days=size.pick(full=365, small=10))
    with TemporaryDirectory(prefix=PREFIX) as folder, ExitStack() as drivers:
        homes = [Path(folder) / name for name in ("fresh", "grown")]
        for home in homes:
            ensure_tables(open_catalog(_settings(home)))
        grow(_settings(homes[1]), growth)
        both = [drivers.enter_context(Driver(home)) for home in homes]
        rounds = WARM_UP_RUNS + size.pick(full=7, small=1)
        runs = [[driver.run(number) for driver in both] for number in range(rounds)][WARM_UP_RUNS:]
    young, old = [fresh for fresh, _ in runs], [grown for _, grown in runs]
    return list(_rows(f"a run into a lake of {growth.days} days", young, old))


def _rows(what: str, young: list["Run"], old: list["Run"]) -> Iterator[Row]:
    for measure, of, unit, per in (
        ("by the clock", "wall_s", "s", 1),
        ("by CPU", "cpu_s", "s of CPU", 1),
        ("heap in use afterwards", "heap", "MiB", 1 << 20),
        ("memory at its peak", "bytes", "MiB", 1 << 20),
    ):
        mine, theirs = _median(old, of), _median(young, of)
        yield Row(f"{what}, {measure}", f"{mine / per:,.1f} {unit} ({theirs / per:,.1f} {unit})", FRESH, mine / theirs)


def _settings(home: Path) -> Settings:
    return Settings(home=home, spark_driver_memory="2g", redis_port=1)


class Driver:
    """A process with a Spark of its own that does one run at a time."""

    def __init__(self, home: Path) -> None:
        self._name = home.name
        given = [sys.executable, "-m", "benchmarks.grown_lake", str(home)]
        self._process = subprocess.Popen(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, number: int) -> "Run":
        """Do the run with this number and return what it took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        took = Run(**json.loads(said))  # an empty line if the driver has failed; its traceback is on stderr
        print(f"{self._name}, run {number}: {took}", file=sys.stderr, flush=True)
        return took


def drive(home: Path) -> None:
    """Do a run for each number on standard input, and print what it took as JSON."""
    settings, said = _settings(home), sys.stdout
    sys.stdout = sys.stderr
    with session(settings, "bench", meanwhile=GREAT_EXPECTATIONS) as spark:
        for line in sys.stdin:
            said.write(json.dumps(asdict(_measured(spark, settings, int(line)))) + "\n")
            said.flush()


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took."""

    wall_s: float
    cpu_s: float
    bytes: int  # the peak of driver, JVM and workers together
    heap: int  # bytes in use after the run and a garbage collection


def _median(runs: list[Run], of: str) -> float:
    return float(median(getattr(each, of) for each in runs))


def _measured(spark: SparkSession, settings: Settings, number: int) -> Run:
    """One run over five new minutes of recording."""
    _write_five_minutes(Path(settings.archive.removeprefix("file://")), number)
    catalog, now = open_catalog(settings), datetime_of(seq_of(NOON_MS + (number + 1) * FIVE_MINUTES_MS, 0, 0))

    def work() -> None:
        assert discover(catalog, settings, now=now).segments
        done, _, _ = ingest_audit_publish(IngestRun(spark, catalog, settings, f"run_{number}", now))
        assert done.written[IDS.name], done

    most: list[int] = []
    cost: list[Cost] = []
    _watched(lambda: cost.append(cost_of(work)), most)
    jvm = spark._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return Run(cost[0].wall_s, cost[0].cpu_s, max(most), runtime.totalMemory() - runtime.freeMemory())


def _watched(work: Callable[[], object], seen: list[int]) -> None:
    """Do the work and note the memory of this process and its children meanwhile."""
    over = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not over.is_set():
            seen.append(sum(p.memory_info().rss for p in (me, *me.children(recursive=True)) if p.is_running()))
            over.wait(LOOK_S)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        over.set()
        watcher.join()


def _write_five_minutes(archive: Path, number: int) -> None:
    """Ten segments of each stream: triggers, their payloads, and the outcomes of all vehicles."""
    start = NOON_MS + number * FIVE_MINUTES_MS
    vins = [vin_of(place) for place in range(RUN_VINS)]
    for ms in range(start, start + FIVE_MINUTES_MS, SEGMENT_MS):
        trigger_seq = seq_of(ms + 1, 0, 0)
        write_segment(archive, [data(seq_of(ms, 0, 0), f"payload-{ms}", b"x" * PAYLOAD)])
        write_segment(archive, [trigger(trigger_seq, vins, f"task_a_{ms + 1}", f"payload-{ms}")])
        write_segment(archive, [outcome(seq_of(ms + 2 + place, 0, 0), vin, trigger_seq) for place, vin in enumerate(vins)])


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
