"""A small run of `ingest_archives` through a real Airflow, from when it is due until it is published, against fixed limits.

Each run finds one trigger for 200 vehicles, its payload of 64 KiB and 150 outcomes, and is triggered through Airflow's REST
API. The first run after the start is reported by itself; the next one is not counted, and the median is that of the others. CPU
is that of Airflow and of all that it starts, less what an idle Airflow takes. Then Redis is wiped, and `manifold rebuild` timed.
Last, the same runs use a Spark Connect server, whose CPU counts, too.
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
from manifold.contracts.tables import IDS, OUTCOMES
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
NODE = 900  # of no recorder
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
WARM_UPS = 5  # runs until the server's JVM has compiled what they use
PAUSE_S = 2.3  # no multiple of the scheduler's interval
LOOK_S, WITHIN_S = 0.1, 300


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds since a run was due."""

    begun: float  # the scheduler took it up
    tasks: Mapping[str, tuple[float, float]]  # of each task that ran: start and end of its process
    published: float
    ended: float


def run(size: Size) -> list[Row]:
    """Measure on a platform where nothing runs that is not triggered."""
    none = {f"{what}_schedule": "" for what in SCHEDULES}
    count, idle_s = size.pick(full=5, small=1), size.pick(full=30.0, small=5.0)
    with sandbox(with_airflow=True, **none) as settings:
        with logged_in(settings, airflow.url(settings)) as api:
            api.wait_known(DAG, within_s=WITHIN_S)
            cold = _one(settings, api)
            _one(settings, api)
            runs, cpu_s, idle = _measured(settings, api, count, idle_s)
        queued, rebuild = _rebuild(settings)
    with (
        _connect_server() as server,
        sandbox(with_airflow=True, spark_master=f"sc://127.0.0.1:{server.port}", **none) as settings,
        logged_in(settings, airflow.url(settings)) as api,
    ):
        api.wait_known(DAG, within_s=WITHIN_S)
        for _ in range(size.pick(full=WARM_UPS, small=1)):
            _one(settings, api)
        connected, connected_cpu_s, _ = _measured(settings, api, count, idle_s, server)
    return [
        *_rows(runs, cpu_s),
        *_rows(connected, connected_cpu_s, over=" over Spark Connect"),
        Row("due → published, first run after the start", f"{cold.published:.1f} s", value=cold.published),
        Row("CPU of Airflow when nothing runs", f"{idle * 100:.0f} % of a core"),
        Row("`manifold rebuild` into a wiped Redis", f"{rebuild.wall_s:.1f} s, {queued} entries", value=rebuild.wall_s),
    ]


@contextmanager
def _connect_server() -> Iterator[Server]:
    """A Spark Connect server with the sandbox's configuration of Spark."""
    with TemporaryDirectory(prefix=PREFIX) as name:
        folder, port = Path(name), free_port()
        defaults = write_defaults(Settings(home=folder), folder) / "spark-defaults.conf"
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", CONNECT_SERVER, "--master", "local[*]"]
        command += ["--properties-file", str(defaults), "--conf", f"{EXTENSIONS}={ICEBERG_EXTENSIONS}"]
        command += [f"--conf=spark.connect.grpc.binding.{what}" for what in ("address=127.0.0.1", f"port={port}")]
        env = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with start(command, port=port, log=folder / "connect.log", env=env) as server:
            yield server


def _measured(
    settings: Settings, api: AirflowApi, count: int, idle_s: float, server: Server | None = None
) -> tuple[list[Run], float, float]:
    """Return the runs, the CPU seconds of one beyond an idle Airflow, and the CPU seconds a second of an idle Airflow.

    A `server` of Spark counts as Airflow.
    """
    time.sleep(PAUSE_S)
    idle = _cpu_s(settings, server)
    time.sleep(idle_s)
    idle_rate = (_cpu_s(settings, server) - idle) / idle_s
    cpu, began, runs = _cpu_s(settings, server), time.monotonic(), list[Run]()
    for _ in range(count):
        runs.append(_one(settings, api))
        time.sleep(PAUSE_S)
    beyond = _cpu_s(settings, server) - cpu - idle_rate * (time.monotonic() - began)
    return runs, beyond / count, idle_rate


def _cpu_s(settings: Settings, server: Server | None) -> float:
    """CPU seconds of Airflow, the server, and all that they have started, including processes that have ended."""
    records = [HomeLayout(settings.home).recorded()["airflow"], Record.of(server.pid) if server else None]
    total = 0.0
    for process in {process for record in records if record for process in family(record)}:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def _one(settings: Settings, api: AirflowApi) -> Run:
    _write_segments(Path(settings.archive.removeprefix("file://")), time.time_ns() // 1_000_000 - 1000)
    before = _row_counts(settings)
    run_id = api.trigger_dag(DAG)
    published = _when_published(settings, before)
    state = api.wait(DAG, run_id, within_s=WITHIN_S)
    added = tuple(now - then for now, then in zip(_row_counts(settings), before, strict=True))
    if state != "success" or added != (VEHICLES, ENDED):
        raise RuntimeError(f"run {run_id} was to publish {VEHICLES} ids and {ENDED} outcomes: {state}, {added}")
    record = api.run(DAG, run_id)
    due = datetime.fromisoformat(record["run_after"])

    def since(moment: str) -> float:
        return (datetime.fromisoformat(moment) - due).total_seconds()

    found = {name: api.task(DAG, run_id, name) for name in TASKS}
    tasks = {
        name: (since(task["start_date"]), since(task["end_date"])) for name, task in found.items() if task["state"] == "success"
    }
    return Run(since(record["start_date"]), tasks, (published - due).total_seconds(), since(record["end_date"]))


def _write_segments(archive: Path, now_ms: int) -> None:
    """A trigger for 200 vehicles, its payload, and the outcomes of 150 entries."""
    vins = valid_vins(0, VEHICLES)
    data_id, trigger_seq = f"payload-{now_ms}", seq_of(now_ms + 1, NODE, 0)
    write_segment(archive, [data(seq_of(now_ms, NODE, 0), data_id, os.urandom(PAYLOAD))], NODE)
    write_segment(archive, [trigger(trigger_seq, vins, f"task_{now_ms}", data_id)], NODE)
    ended = [outcome(seq_of(now_ms + 10 + at, NODE, 0), vin, trigger_seq) for at, vin in enumerate(vins[:ENDED])]
    write_segment(archive, ended, NODE)


def _when_published(settings: Settings, before: tuple[int, int]) -> datetime:
    """When a reader of the lake finds more ids and outcomes than there were."""
    look = Retrying(retry=retry_if_result(lambda new: not new), wait=wait_fixed(LOOK_S), stop=stop_after_delay(WITHIN_S))
    look(lambda: all(now > then for now, then in zip(_row_counts(settings), before, strict=True)))
    return datetime.now(UTC)


def _row_counts(settings: Settings) -> tuple[int, int]:
    """Ids and outcomes in the lake's main."""
    catalog = open_catalog(settings)
    heads = [catalog.load_table(table.identifier).current_snapshot() for table in (IDS, OUTCOMES)]
    ids, ended = (int(head.summary["total-records"] or 0) if head and head.summary else 0 for head in heads)
    return ids, ended


def _rebuild(settings: Settings) -> tuple[int, Cost]:
    """Return how many entries `manifold rebuild` queued in a Redis that was wiped, and what it took."""
    with connect(settings.redis) as redis:
        redis.flushall()
    command, printed = [sys.executable, "-m", "manifold.console", "rebuild", "--json"], list[str]()

    def rebuild() -> None:
        printed.append(subprocess.run(command, env=environment(settings), capture_output=True, text=True, check=True).stdout)

    cost = cost_of(rebuild)
    return int(json.loads(printed[0])["populated"]["queued"]), cost


def _rows(runs: list[Run], cpu_s: float, over: str = "") -> list[Row]:
    published = [each.published for each in runs]
    median = p50(published)
    rows = [
        Row(f"due → published{over}, median", f"{median:.1f} s", LIMIT, median / 300, value=median),
        Row(f"due → published{over}, worst", f"{max(published):.1f} s"),
        Row(f"due → success of the run{over}, median", f"{p50([each.ended for each in runs]):.1f} s"),
        Row(f"CPU of a run{over}, with Airflow", f"{cpu_s:.1f} s", value=cpu_s),
    ]
    if over:
        return rows
    rows.append(Row("due → taken up by the scheduler", f"{p50([each.begun for each in runs]):.1f} s"))
    before = ""
    for name in (name for name in TASKS if name in runs[0].tasks):
        waited = p50([each.tasks[name][0] - (each.tasks[before][1] if before else each.begun) for each in runs])
        took = p50([each.tasks[name][1] - each.tasks[name][0] for each in runs])
        rows.append(Row(f"wait for `{name}`; `{name}` itself", f"{waited:.1f} s; {took:.1f} s"))
        before = name
    return rows
