"""A five-minute run into a fresh lake and into one that has grown for a year: every table, as ingest and compaction leave them.

`python -m benchmarks.growth [--days 365] [--entries 20000] [--segments 8640] [--payloads 20] [--rounds 7]`: entries, segments
and payloads are those of one day. Each lake has a driver of its own, and they take turns: a run into the fresh lake, one into the
grown one. The ratio is that of the medians of whole runs (look, write, judge, publish), by the wall clock and by CPU time; memory
is the most that the driver, its JVM and its workers had in a run. Each run says on stderr what it took.
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

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from adapters.lake import ensure_tables, open_catalog
from benchmarks.machine import Cost, Row, cost_of, report
from contracts.envelope import Envelope, Stream, segment_path, to_arrow
from contracts.seq import EPOCH_MS, TIME_SHIFT
from contracts.settings import Settings
from contracts.tables import DATA, IDS, META, OUTCOMES, SEGMENTS, Table
from pipelines.ingest.discover import discover
from pipelines.ingest.run import Run as IngestRun
from pipelines.ingest.run_all import ingest_audit_publish
from pipelines.spark.session import GREAT_EXPECTATIONS, session
from tests.pipelines.makers import NOON, at, data, outcome, trigger

DAY_MS, FIVE_MINUTES_MS, SEGMENT_MS = 86_400_000, 300_000, 30_000
NOON_MS = int(NOON.timestamp() * 1000)
VINS_A_TRIGGER, VINS = 5000, 100_000
DAYS_AT_ONCE = 31
RUN_VINS = 200  # of each trigger of the runs that are measured
PAYLOAD = 4096  # bytes
AIM = 1.15
WARM = 2  # runs of each driver that do not count
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """How long the lake has grown, and by how much a day."""

    days: int = 365
    entries: int = 20_000
    segments: int = 8640
    payloads: int = 20
    rounds: int = 7


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
    wall, cpu, memory = (_ratio(young, old, of) for of in ("wall_s", "cpu_s", "bytes"))
    return [
        Row("a five-minute run, new lake", f"{_median(young, 'wall_s'):.1f} s", "1.00", cpu="1.00"),
        Row("grown", f"{_median(old, 'wall_s'):.1f} s", f"{wall:.2f}", f"≤ {AIM}", wall <= AIM, f"{cpu:.2f}"),
        Row("CPU of it, new lake", f"{_median(young, 'cpu_s'):.1f} s"),
        Row("grown", f"{_median(old, 'cpu_s'):.1f} s"),
        Row("memory of a run, new lake", f"{_median(young, 'bytes') / (1 << 20):,.0f} MiB", "1.00"),
        Row("grown", f"{_median(old, 'bytes') / (1 << 20):,.0f} MiB", f"{memory:.2f}", f"≤ {AIM}", memory <= AIM),
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
    bytes: int


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
    return Run(cost[0].wall_s, cost[0].cpu_s, max(most))


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
        vins = [_vin(place) for place in range(RUN_VINS)]
        _write(archive, Stream.DATA, [data(ms, f"payload-{ms}", b"x" * PAYLOAD)])
        _write(archive, Stream.TRIGGER, [trigger(ms + 1, vins, f"payload-{ms}", applied=True)])
        _write(archive, Stream.OUTCOME, [outcome(ms + 2 + place, vin, ms + 1) for place, vin in enumerate(vins)])


def _write(archive: Path, stream: Stream, envelopes: list[Envelope]) -> None:
    file = archive / segment_path(stream, envelopes[0].seq, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(envelopes), file)


def grow(settings: Settings, size: Size) -> None:
    """So many days before the first run: a file a day in each table, as compaction leaves settled days."""
    for first in range(size.days, 0, -DAYS_AT_ONCE):
        days = np.arange(first, max(0, first - DAYS_AT_ONCE), -1)
        _append(settings, IDS, _entries(days, size, ended=False))
        _append(settings, OUTCOMES, _entries(days, size, ended=True))
        _append(settings, DATA, _payloads(days, size, DATA))
        _append(settings, META, _payloads(days, size, META))
        _append(settings, SEGMENTS, _segments(days, size))


def _append(settings: Settings, table: Table, columns: dict[str, object]) -> None:
    nothing = pa.nulls(len(next(iter(columns.values()))))  # type: ignore[arg-type]  # all are arrays
    rows = pa.table({c.name: pa.array(columns.get(c.name, nothing)) for c in table.columns})
    open_catalog(settings).load_table(table.identifier).append(rows.cast(table.arrow_schema))


def _times(days: "np.ndarray[tuple[int], np.dtype[np.int64]]", a_day: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """So many instants a day, in milliseconds since 1970."""
    within = np.arange(a_day) * (DAY_MS // (2 * a_day))
    return np.asarray((NOON_MS - days[:, None] * DAY_MS + within[None, :]).ravel())


def _instants(ms: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.Array:
    return pa.array(ms * 1000).cast(pa.timestamp("us", tz="UTC"))


def _seqs(ms: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return (ms - EPOCH_MS) << TIME_SHIFT


def _entries(days: "np.ndarray[tuple[int], np.dtype[np.int64]]", size: Size, *, ended: bool) -> dict[str, object]:
    triggers = _times(days, max(1, size.entries // VINS_A_TRIGGER))
    ms = np.repeat(triggers, min(VINS_A_TRIGGER, size.entries))
    vins = [_vin(number % VINS) for number in range(len(ms))]
    said = {"vin": vins, "seq": _seqs(ms)}
    if ended:
        times = {name: _instants(ms + 1000) for name in ("dispatched_at", "acknowledged_at", "ended_at")}
        how = {"outcome": ["delivered"] * len(ms), "attempts": np.ones(len(ms), np.int32)}
        return {**said, **how, "accepted_at": _instants(ms), **times}
    names = {"request_id": [f"task_{at}" for at in ms], "data_id": [f"old-{at}" for at in ms]}
    return {**said, **names, "ts": _instants(ms), "applied": np.ones(len(ms), np.bool_)}


def _payloads(days: "np.ndarray[tuple[int], np.dtype[np.int64]]", size: Size, table: Table) -> dict[str, object]:
    ms = _times(days, size.payloads)
    said = {"data_id": [f"old-{at}" for at in ms], "sha1": [f"{at:040x}" for at in ms], "first_seen_at": _instants(ms)}
    if table is META:
        return {**said, "last_seen_at": _instants(ms), "times_seen": np.ones(len(ms), np.int64), "stored_at": _instants(ms)}
    return {**said, "payload": [b"y" * PAYLOAD] * len(ms), "size_bytes": np.full(len(ms), PAYLOAD), "seq": _seqs(ms)}


def _segments(days: "np.ndarray[tuple[int], np.dtype[np.int64]]", size: Size) -> dict[str, object]:
    ms = _times(days, size.segments)
    streams = [list(Stream)[place % 3] for place in range(len(ms))]
    seqs = _seqs(ms)
    paths = [segment_path(stream, int(seq), 0) for stream, seq in zip(streams, seqs, strict=True)]
    run = {"run_id": [f"scheduled__{at}" for at in ms // FIVE_MINUTES_MS], "ingested_at": _instants(ms + FIVE_MINUTES_MS)}
    span = {"first_seq": seqs, "last_seq": seqs, "messages": np.ones(len(ms), np.int64), "began_at": _instants(ms)}
    return {"path": paths, "stream": [stream.value for stream in streams], **run, **span}


def _vin(number: int) -> str:
    return f"WMANF0LD{number:09d}"


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
