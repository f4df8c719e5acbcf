"""A five-minute run into a fresh lake and into one that has grown for a year: every table, as ingest and compaction leave them.

`python -m benchmarks.growth [--days 365] [--entries 20000] [--segments 8640] [--payloads 20] [--rounds 7]`: entries, segments
and payloads are those of one day. Each lake has a driver of its own, and they take turns: a run into the fresh lake, one into the
grown one. The ratio is that of the medians of whole runs (look, write, judge, publish), by the wall clock and by CPU time. Memory
is the most that the driver, its JVM and its workers had in a run, of which the JVM's heap is what its collector found convenient
within 2 GiB; so what the heap holds after a run, collected, is told, too. Each run says on stderr what it took.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Self

import psutil
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.grown import FIVE_MINUTES_MS, PAYLOAD, Size, grow, vin
from benchmarks.machine import Cost, Row, cost_of, report
from manifold.contracts.envelope import Envelope, Stream, segment_path, to_arrow
from manifold.contracts.tables import IDS
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from pipelines.ingest.discover import discover
from pipelines.ingest.run import Run as IngestRun
from pipelines.ingest.run_all import ingest_audit_publish
from pipelines.spark.session import GREAT_EXPECTATIONS, session
from tests.pipelines.makers import at, data, outcome, trigger

SEGMENT_MS = 30_000
RUN_VINS = 200  # of each trigger of the runs that are measured
AIM = 1.15
WARM = 2  # runs of each driver that do not count
LOOK_S = 0.05


def setting(size: Size) -> str:
    """What was measured, in words."""
    return f"{size.days} days of {size.entries:,} entries, {size.segments:,} segments, {size.payloads:,} payloads"


def run(size: Size) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder, ExitStack() as drivers:
        homes = [Path(folder) / name for name in ("fresh", "grown")]
        for home in homes:
            ensure_tables(open_catalog(_settings(home)))
        grow(_settings(homes[1]), size)
        both = [drivers.enter_context(Driver(home)) for home in homes]
        runs = [[driver.run(number) for driver in both] for number in range(WARM + size.rounds)][WARM:]
    young, old = [fresh for fresh, _ in runs], [grown for _, grown in runs]
    wall, cpu, memory, heap = (_ratio(young, old, of) for of in ("wall_s", "cpu_s", "bytes", "heap"))
    return [
        Row("a five-minute run, new lake", f"{_median(young, 'wall_s'):.1f} s", "1.00", cpu="1.00"),
        Row("grown", f"{_median(old, 'wall_s'):.1f} s", f"{wall:.2f}", f"≤ {AIM}", wall <= AIM, f"{cpu:.2f}"),
        Row("CPU of it, new lake", f"{_median(young, 'cpu_s'):.1f} s"),
        Row("grown", f"{_median(old, 'cpu_s'):.1f} s"),
        Row("heap in use after a run, new lake", f"{_median(young, 'heap') / (1 << 20):,.0f} MiB", "1.00"),
        Row("grown", f"{_median(old, 'heap') / (1 << 20):,.0f} MiB", f"{heap:.2f}", f"≤ {AIM}", heap <= AIM),
        Row("memory of a run, new lake", f"{_median(young, 'bytes') / (1 << 20):,.0f} MiB", "1.00"),
        Row("grown", f"{_median(old, 'bytes') / (1 << 20):,.0f} MiB", f"{memory:.2f}"),
    ]


def _settings(home: Path) -> Settings:
    return Settings(home=home, spark_driver_memory="2g", redis_port=1)


class Driver:
    """Another process with a Spark of its own, that does one run when it is told to."""

    def __init__(self, home: Path) -> None:
        self._name = home.name
        given = [sys.executable, "-m", "benchmarks.growth", f"--drive={home}"]
        self._process = subprocess.Popen(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, number: int) -> "Run":
        """The run of this number, and what it took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        took = Run(**json.loads(said))  # an empty line: the driver has failed, and has said why on stderr
        print(f"{self._name}, run {number}: {took}", file=sys.stderr, flush=True)
        return took


def drive(home: Path) -> None:
    """Do a run for each number that is read, and say what it took."""
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
    bytes: int  # the most that driver, JVM and workers had
    heap: int  # bytes that the JVM still needs after the run, once its garbage is collected


def _ratio(young: list[Run], old: list[Run], of: str) -> float:
    return _median(old, of) / _median(young, of)


def _median(runs: list[Run], of: str) -> float:
    return float(median(getattr(each, of) for each in runs))


def _measured(spark: SparkSession, settings: Settings, number: int) -> Run:
    """One run over five minutes of recording that are new."""
    write_five_minutes(Path(settings.archive.removeprefix("file://")), number)
    catalog, now = open_catalog(settings), at((number + 1) * FIVE_MINUTES_MS)

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
    """Do the work, and note what this process and its children have in memory meanwhile."""
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


def write_five_minutes(archive: Path, number: int) -> None:
    """Ten segments of each stream: triggers, their data, and outcomes of all vehicles."""
    start = number * FIVE_MINUTES_MS
    for ms in range(start, start + FIVE_MINUTES_MS, SEGMENT_MS):
        vins = [vin(place) for place in range(RUN_VINS)]
        _write(archive, Stream.DATA, [data(ms, f"payload-{ms}", b"x" * PAYLOAD)])
        _write(archive, Stream.TRIGGER, [trigger(ms + 1, vins, f"payload-{ms}", applied=True)])
        _write(archive, Stream.OUTCOME, [outcome(ms + 2 + place, vin, ms + 1) for place, vin in enumerate(vins)])


def _write(archive: Path, stream: Stream, envelopes: list[Envelope]) -> None:
    file = archive / segment_path(stream, envelopes[0].seq, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(envelopes), file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for each in fields(Size):
        parser.add_argument(f"--{each.name}", type=int, default=getattr(Size(), each.name))
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = Size(**{each.name: getattr(options, each.name) for each in fields(Size)})
    if options.drive is not None:
        drive(options.drive)
    else:
        report("growth", setting(wanted), run(wanted))
