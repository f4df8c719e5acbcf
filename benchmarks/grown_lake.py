"""A run that ingests five minutes into a lake that has grown for a year, against the same run into a fresh lake.

Every table of the grown lake looks as after ingest and compaction: it has 20,000 entries, 8,640 segments and 20 payloads a day.
Each lake has its own driver process, `python -m benchmarks.grown_lake HOME`, and the two drivers run in turn. Rows are medians of
whole runs (discover, write, audit, publish). Memory is the peak of driver, JVM and workers. How much of its 2 GiB the JVM uses
depends on its garbage collector, so the heap in use after a collection is reported, too.
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
from pipelines.ingest.backlog import ingest_audit_publish
from pipelines.ingest.discover import discover
from pipelines.ingest.run import Run as IngestRun
from pipelines.spark.session import GREAT_EXPECTATIONS, session

SEGMENT_MS = 30_000
RUN_VINS = 200  # vehicles in each trigger of the measured runs
WARM_UP_RUNS = 2  # runs of each driver that do not count
POLL_S = 0.05
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
        fresh, grown = (drivers.enter_context(Driver(home)) for home in homes)
        fresh_runs, grown_runs = list[Run](), list[Run]()
        for number in range(WARM_UP_RUNS + size.pick(full=7, small=1)):
            fresh_runs.append(fresh.run(number))
            grown_runs.append(grown.run(number))
    what = f"a run into a lake of {growth.days} days"
    return list(_rows(what, fresh_runs[WARM_UP_RUNS:], grown_runs[WARM_UP_RUNS:]))


def _rows(what: str, fresh: list["Run"], grown: list["Run"]) -> Iterator[Row]:
    for measure, field, unit, divisor in (
        ("by the clock", "wall_s", "s", 1),
        ("by CPU", "cpu_s", "s of CPU", 1),
        ("heap in use afterwards", "heap", "MiB", 1 << 20),
        ("memory at its peak", "bytes", "MiB", 1 << 20),
    ):
        ours, theirs = _median(grown, field), _median(fresh, field)
        figure = f"{ours / divisor:,.1f} {unit} ({theirs / divisor:,.1f} {unit})"
        yield Row(f"{what}, {measure}", figure, FRESH, ours / theirs)


def _settings(home: Path) -> Settings:
    return Settings(home=home, spark_driver_memory="2g", redis_port=1)


class Driver:
    """A process with its own Spark session that does one run at a time."""

    def __init__(self, home: Path) -> None:
        self._name = home.name
        command = [sys.executable, "-m", "benchmarks.grown_lake", str(home)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, number: int) -> "Run":
        """Do the run with this number and return its cost."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()  # empty if the driver has failed; its traceback is on stderr
        result = Run(**json.loads(line))
        print(f"{self._name}, run {number}: {result}", file=sys.stderr, flush=True)
        return result


def drive(home: Path) -> None:
    """Do a run for each number on standard input, and print its cost as JSON."""
    settings = _settings(home)
    results, sys.stdout = sys.stdout, sys.stderr  # only results may go to standard output
    with session(settings, "bench", meanwhile=GREAT_EXPECTATIONS) as spark:
        for line in sys.stdin:
            run = _measured(spark, settings, int(line))
            results.write(json.dumps(asdict(run)) + "\n")
            results.flush()


@dataclass(frozen=True, slots=True)
class Run:
    """The cost of one run."""

    wall_s: float
    cpu_s: float
    bytes: int  # the peak of driver, JVM and workers together
    heap: int  # bytes in use after the run and a garbage collection


def _median(runs: list[Run], field: str) -> float:
    return float(median(getattr(run, field) for run in runs))


def _measured(spark: SparkSession, settings: Settings, number: int) -> Run:
    """Write the archive of five more minutes, ingest it in one run, and return the cost of the run."""
    _write_five_minutes(Path(settings.archive.removeprefix("file://")), number)
    catalog = open_catalog(settings)
    now = datetime_of(seq_of(NOON_MS + (number + 1) * FIVE_MINUTES_MS, 0, 0))

    def work() -> None:
        assert discover(catalog, settings, now=now).segments
        result, _, _ = ingest_audit_publish(IngestRun(spark, catalog, settings, f"run_{number}", now))
        assert result.written[IDS.name], result

    costs: list[Cost] = []
    memory = _memory_during(lambda: costs.append(cost_of(work)))
    [cost] = costs
    jvm = spark._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return Run(cost.wall_s, cost.cpu_s, max(memory), runtime.totalMemory() - runtime.freeMemory())


def _memory_during(work: Callable[[], object]) -> list[int]:
    """Do the work; return the resident bytes of this process and its children, sampled every `POLL_S` during the work."""
    samples: list[int] = []
    has_ended = threading.Event()

    def watch() -> None:
        own_process = psutil.Process()
        while not has_ended.is_set():
            processes = (own_process, *own_process.children(recursive=True))
            samples.append(sum(process.memory_info().rss for process in processes if process.is_running()))
            has_ended.wait(POLL_S)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        has_ended.set()
        watcher.join()
    return samples


def _write_five_minutes(archive: Path, number: int) -> None:
    """Write ten segments of each stream: triggers, their payloads, and the outcomes of all vehicles."""
    start = NOON_MS + number * FIVE_MINUTES_MS
    vins = [vin_of(number) for number in range(RUN_VINS)]
    for ms in range(start, start + FIVE_MINUTES_MS, SEGMENT_MS):
        trigger_seq = seq_of(ms + 1, 0, 0)
        write_segment(archive, [data(seq_of(ms, 0, 0), f"payload-{ms}", b"x" * PAYLOAD)])
        write_segment(archive, [trigger(trigger_seq, vins, f"task_a_{ms + 1}", f"payload-{ms}")])
        outcomes = [outcome(seq_of(ms + 2 + index, 0, 0), vin, trigger_seq) for index, vin in enumerate(vins)]
        write_segment(archive, outcomes)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
