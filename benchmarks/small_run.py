"""A small run of `ingest_archives` through a real Airflow, from its due time until it is published, against fixed limits.

Each run ingests one trigger for 200 vehicles, its payload of 64 KiB and 150 outcomes, and is triggered through Airflow's REST
API. The first run after the start has its own row. The next run does not count, and the median is that of the runs after it. CPU
is that of Airflow and all processes that it starts, minus the CPU of an idle Airflow. Then Redis is wiped, and `manifold rebuild`
is timed. At the end, the same runs use a Spark Connect server, whose CPU counts, too.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pyspark
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from benchmarks._archive import data, outcome, trigger, valid_vins, write_segment
from benchmarks._measure import Cost, Row, Size, at_most, cost_of, p50
from benchmarks._servers import PREFIX, Server, free_port, sandbox, start
from manifold.contracts.seq import seq_of
from manifold.contracts.tables import IDS, OUTCOMES, Table
from manifold.lake.catalog import open_catalog
from manifold.runtime.redis import connect
from manifold.sandbox.platform import airflow
from manifold.sandbox.platform.airflow_api import AirflowApi
from manifold.sandbox.platform.airflow_users import logged_in
from manifold.sandbox.platform.processes import Record, family
from manifold.sandbox.platform.programs import environment
from manifold.sandbox.platform.supervisord import HomeLayout
from manifold.settings import Settings
from pipelines.spark.conf import EXTENSIONS, ICEBERG_EXTENSIONS, write_defaults

AIMS = {
    "due → published, median": at_most(30, "s"),
    "CPU of a run, with Airflow": at_most(25, "s"),
    "due → published, first run after the start": at_most(45, "s"),
    "due → published over Spark Connect, median": at_most(15, "s"),
    "CPU of a run over Spark Connect, with Airflow": at_most(15, "s"),
    "`manifold rebuild` into a wiped Redis": at_most(10, "s"),
}
LIMIT = "a run every five minutes"
DAG, TASKS = "ingest_archives", ("discover", "ingest", "audit", "publish", "populate")
SCHEDULES = ("ingest", "compact", "garbage", "verify", "check")
VEHICLES, ENDED, PAYLOAD = 200, 150, 64 << 10
NODE = 900  # a node number that no recorder uses
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
WARM_UPS = 5  # runs after which the server's JVM has compiled the code that runs use
PAUSE_S = 2.3  # between two runs; not a multiple of the scheduler's interval, so that runs become due at different phases of it
POLL_S, TIMEOUT_S = 0.1, 300


@dataclass(frozen=True, slots=True)
class Run:
    """Times of a run, in seconds since it was due."""

    begun: float  # the scheduler has started the run
    tasks: Mapping[str, tuple[float, float]]  # by task that ran: start and end of its process
    published: float
    ended: float


def run(size: Size) -> list[Row]:
    """Measure on a platform without schedules, so that only the triggered runs run."""
    no_schedules = {f"{name}_schedule": "" for name in SCHEDULES}
    count, idle_s = size.pick(full=5, small=1), size.pick(full=30.0, small=5.0)
    with sandbox(with_airflow=True, **no_schedules) as settings:
        with logged_in(settings, airflow.url(settings)) as api:
            api.wait_known(DAG, within_s=TIMEOUT_S)
            cold = _measure_run(settings, api)
            _measure_run(settings, api)
            runs, cpu_s, idle_rate = _measured(settings, api, count, idle_s)
        queued, rebuild = _rebuild(settings)
    with (
        _connect_server() as server,
        sandbox(with_airflow=True, spark_master=f"sc://127.0.0.1:{server.port}", **no_schedules) as settings,
        logged_in(settings, airflow.url(settings)) as api,
    ):
        api.wait_known(DAG, within_s=TIMEOUT_S)
        for _ in range(size.pick(full=WARM_UPS, small=1)):
            _measure_run(settings, api)
        connect_runs, connect_cpu_s, _ = _measured(settings, api, count, idle_s, server)
    return [
        *_rows(runs, cpu_s),
        *_rows(connect_runs, connect_cpu_s, suffix=" over Spark Connect"),
        Row("due → published, first run after the start", f"{cold.published:.1f} s", value=cold.published),
        Row("CPU of Airflow when nothing runs", f"{idle_rate * 100:.0f} % of a core"),
        Row("`manifold rebuild` into a wiped Redis", f"{rebuild.wall_s:.1f} s, {queued} entries", value=rebuild.wall_s),
    ]


@contextmanager
def _connect_server() -> Iterator[Server]:
    """Run a Spark Connect server with the sandbox's configuration of Spark."""
    with TemporaryDirectory(prefix=PREFIX) as name:
        folder, port = Path(name), free_port()
        defaults = write_defaults(Settings(home=folder), folder) / "spark-defaults.conf"
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", CONNECT_SERVER, "--master", "local[*]"]
        command += ["--properties-file", str(defaults), "--conf", f"{EXTENSIONS}={ICEBERG_EXTENSIONS}"]
        command += [f"--conf=spark.connect.grpc.binding.{binding}" for binding in ("address=127.0.0.1", f"port={port}")]
        env = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with start(command, port=port, log=folder / "connect.log", env=env) as server:
            yield server


def _measured(
    settings: Settings, api: AirflowApi, count: int, idle_s: float, server: Server | None = None
) -> tuple[list[Run], float, float]:
    """Return `count` runs, the mean CPU seconds of a run, and the CPU seconds a second of an idle Airflow.

    The CPU of a run does not include that of an idle Airflow. The CPU of `server`, a Spark Connect server, counts like Airflow's.
    """
    time.sleep(PAUSE_S)
    idle_before_s = _cpu_s(settings, server)
    time.sleep(idle_s)
    idle_rate = (_cpu_s(settings, server) - idle_before_s) / idle_s
    runs = list[Run]()
    cpu_before_s, began = _cpu_s(settings, server), time.monotonic()
    for _ in range(count):
        runs.append(_measure_run(settings, api))
        time.sleep(PAUSE_S)
    idle_cpu_s = idle_rate * (time.monotonic() - began)
    cpu_of_runs_s = _cpu_s(settings, server) - cpu_before_s - idle_cpu_s
    return runs, cpu_of_runs_s / count, idle_rate


def _cpu_s(settings: Settings, server: Server | None) -> float:
    """Return the CPU seconds of Airflow, of the server, and of all their descendants, including processes that have ended."""
    records = [HomeLayout(settings.home).recorded()["airflow"], Record.of(server.pid) if server else None]
    total = 0.0
    for process in {process for record in records if record for process in family(record)}:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def _measure_run(settings: Settings, api: AirflowApi) -> Run:
    """Write segments, trigger a run for them, wait for its end, and return its times.

    Raises:
        RuntimeError: the run failed, or did not publish exactly these rows.
    """
    _write_segments(Path(settings.archive.removeprefix("file://")), time.time_ns() // 1_000_000 - 1000)
    counts_before = _row_counts(settings)
    run_id = api.trigger_dag(DAG)
    published = _wait_until_published(settings, counts_before)
    state = api.wait(DAG, run_id, within_s=TIMEOUT_S)
    added = tuple(after - before for after, before in zip(_row_counts(settings), counts_before, strict=True))
    if state != "success" or added != (VEHICLES, ENDED):
        raise RuntimeError(f"run {run_id} was to publish {VEHICLES} ids and {ENDED} outcomes: {state}, {added}")
    record = api.run(DAG, run_id)
    due = datetime.fromisoformat(record["run_after"])

    def seconds_since_due(instant: str) -> float:
        return (datetime.fromisoformat(instant) - due).total_seconds()

    tasks = {}
    for name in TASKS:
        task = api.task(DAG, run_id, name)
        if task["state"] == "success":
            tasks[name] = seconds_since_due(task["start_date"]), seconds_since_due(task["end_date"])
    return Run(
        begun=seconds_since_due(record["start_date"]),
        tasks=tasks,
        published=(published - due).total_seconds(),
        ended=seconds_since_due(record["end_date"]),
    )


def _write_segments(archive: Path, now_ms: int) -> None:
    """Write a trigger for 200 vehicles, its payload, and the outcomes of 150 of its entries."""
    vins = valid_vins(0, VEHICLES)
    data_id, trigger_seq = f"payload-{now_ms}", seq_of(now_ms + 1, NODE, 0)
    write_segment(archive, [data(seq_of(now_ms, NODE, 0), data_id, os.urandom(PAYLOAD))], NODE)
    write_segment(archive, [trigger(trigger_seq, vins, f"task_{now_ms}", data_id)], NODE)
    outcomes = [outcome(seq_of(now_ms + 10 + index, NODE, 0), vin, trigger_seq) for index, vin in enumerate(vins[:ENDED])]
    write_segment(archive, outcomes, NODE)


def _wait_until_published(settings: Settings, counts_before: tuple[int, int]) -> datetime:
    """Wait until a reader of the lake finds more ids and more outcomes than before; return the time."""

    def has_new_rows() -> bool:
        return all(now > before for now, before in zip(_row_counts(settings), counts_before, strict=True))

    poll = Retrying(retry=retry_if_result(lambda result: not result), wait=wait_fixed(POLL_S), stop=stop_after_delay(TIMEOUT_S))
    poll(has_new_rows)
    return datetime.now(UTC)


def _row_counts(settings: Settings) -> tuple[int, int]:
    """Return the numbers of ids and of outcomes in the lake's main branch."""
    catalog = open_catalog(settings)

    def row_count(table: Table) -> int:
        snapshot = catalog.load_table(table.identifier).current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary["total-records"] or 0)

    return row_count(IDS), row_count(OUTCOMES)


def _rebuild(settings: Settings) -> tuple[int, Cost]:
    """Wipe Redis and run `manifold rebuild`; return the number of entries that it has queued, and its cost."""
    with connect(settings.redis) as redis:
        redis.flushall()
    command = [sys.executable, "-m", "manifold.console", "rebuild", "--json"]
    outputs = list[str]()

    def rebuild() -> None:
        result = subprocess.run(command, env=environment(settings), capture_output=True, text=True, check=True)
        outputs.append(result.stdout)

    cost = cost_of(rebuild)
    return int(json.loads(outputs[0])["populated"]["queued"]), cost


def _rows(runs: list[Run], cpu_s: float, suffix: str = "") -> list[Row]:
    """Return the rows of the runs. `suffix` completes their names; with it, there are no rows for single tasks."""
    published = [run.published for run in runs]
    median = p50(published)
    rows = [
        Row(f"due → published{suffix}, median", f"{median:.1f} s", LIMIT, median / 300, value=median),
        Row(f"due → published{suffix}, worst", f"{max(published):.1f} s"),
        Row(f"due → success of the run{suffix}, median", f"{p50([run.ended for run in runs]):.1f} s"),
        Row(f"CPU of a run{suffix}, with Airflow", f"{cpu_s:.1f} s", value=cpu_s),
    ]
    if suffix:
        return rows
    rows.append(Row("due → taken up by the scheduler", f"{p50([run.begun for run in runs]):.1f} s"))
    previous_ends = [run.begun for run in runs]
    for name in (name for name in TASKS if name in runs[0].tasks):
        starts, ends = [run.tasks[name][0] for run in runs], [run.tasks[name][1] for run in runs]
        waited = p50([start - previous_end for start, previous_end in zip(starts, previous_ends, strict=True)])
        took = p50([end - start for start, end in zip(starts, ends, strict=True)])
        rows.append(Row(f"wait for `{name}`; `{name}` itself", f"{waited:.1f} s; {took:.1f} s"))
        previous_ends = ends
    return rows
