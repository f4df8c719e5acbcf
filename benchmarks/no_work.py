"""A run of `ingest_archives` that finds nothing to do: from when it was due to its success, by Airflow's own record.

Starts the embedded platform with Airflow on free ports, in a folder of its own, and triggers one run after the other through
Airflow's REST API, with pauses that are no multiple of the scheduler's. A scheduled run takes the same way from its due time on.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from adapters.log import configure_logging
from benchmarks.machine import Row, free_ports, report
from contracts.settings import Settings, load_settings
from sandbox.platform import airflow, supervise
from sandbox.platform.airflow_api import AirflowApi
from sandbox.platform.airflow_users import logged_in
from sandbox.platform.processes import family
from sandbox.platform.supervisord import HomeLayout

DAG = "ingest_archives"
RUNS, PAUSE_S, WITHIN_S = 10, 2.3, 120
IDLE_S = 60  # in which the DAG processor reads every file once
AIM_S = 10.0
SETTING = "{runs} runs of ingest_archives, one after the other, nothing new in the archive"


@dataclass(frozen=True, slots=True)
class Run:
    """One run, in seconds since it was due."""

    begun: float  # the run was taken up: its tasks may be scheduled
    queued: float  # the task `discover` was given to the executor
    started: float  # its process runs
    discovered: float  # it has ended
    ended: float  # the run has, with success


def of_record(run: Mapping[str, Any], discover: Mapping[str, Any]) -> Run:
    """The run and its task `discover`, as the REST API shows them."""
    due = datetime.fromisoformat(run["run_after"])
    moments = (run["start_date"], discover["queued_when"], discover["start_date"], discover["end_date"], run["end_date"])
    return Run(*((datetime.fromisoformat(moment) - due).total_seconds() for moment in moments))


def measure(settings: Settings, runs: int) -> tuple[list[Run], float, float]:
    """The runs, the CPU seconds of one, and those that Airflow takes per second when nothing runs."""
    with logged_in(settings, airflow.url(settings)) as api:
        _until_known(api)
        for _ in range(2):  # the first of all reads what later ones find in memory
            _one(api)
        time.sleep(PAUSE_S)
        idle = _cpu_s(settings)
        time.sleep(IDLE_S)
        idle_rate = (_cpu_s(settings) - idle) / IDLE_S
        cpu, began, done = _cpu_s(settings), time.monotonic(), []
        for _ in range(runs):
            done.append(_one(api))
            time.sleep(PAUSE_S)
        beyond = _cpu_s(settings) - cpu - idle_rate * (time.monotonic() - began)
    return done, beyond / runs, idle_rate


@retry(retry=retry_if_result(lambda known: not known), wait=wait_fixed(0.5), stop=stop_after_delay(WITHIN_S))
def _until_known(api: AirflowApi) -> bool:
    return api.knows(DAG)


def _one(api: AirflowApi) -> Run:
    run_id = api.trigger_dag(DAG)
    state = api.wait(DAG, run_id, within_s=WITHIN_S)
    states = api.task_states(DAG, run_id)
    if state != "success" or states["ingest"] != "skipped":
        raise RuntimeError(f"run {run_id} was to find nothing: {state}, {states}")
    return of_record(api.run(DAG, run_id), api.task(DAG, run_id, "discover"))


def _cpu_s(settings: Settings) -> float:
    """CPU seconds of Airflow and of all that it has started, also of what has ended."""
    processes = family(HomeLayout(settings.home).recorded()["airflow"])
    return sum(sum(process.cpu_times()[:4]) for process in processes if psutil.pid_exists(process.pid))


def run(runs: int = RUNS) -> list[Row]:
    """Measure on a platform of its own."""
    with TemporaryDirectory(prefix="manifold-bench-") as folder:
        # Only what the benchmark triggers runs, so that nothing is in its way.
        none = {f"{what}_schedule": "" for what in ("ingest", "compact", "garbage", "verify", "check")}
        settings = load_settings(home=Path(folder), with_airflow=True, with_signals=False, **none, **free_ports())
        supervise.up(settings)
        try:
            return _rows(*measure(settings, runs))
        finally:
            supervise.down(settings)


def _rows(runs: list[Run], cpu_s: float, idle_rate: float) -> list[Row]:
    whole = [each.ended for each in runs]
    median, worst = statistics.median(whole), max(whole)

    def share(what: str, parts: list[float]) -> Row:
        return Row(
            f"… {what}", f"{statistics.median(parts):.2f} s, worst {max(parts):.2f} s", f"{statistics.median(parts) / median:.0%}"
        )

    return [
        Row("due → success, median", f"{median:.2f} s", aim=f"≤ {AIM_S:g} s", met=median <= AIM_S),
        Row("due → success, worst", f"{worst:.2f} s", aim=f"≤ {AIM_S:g} s", met=worst <= AIM_S),
        share("until the scheduler takes the run up", [each.begun for each in runs]),
        share("until it hands `discover` to the executor", [each.queued - each.begun for each in runs]),
        share("until its process runs", [each.started - each.queued for each in runs]),
        share("`discover` itself", [each.discovered - each.started for each in runs]),
        share("until the run is a success", [each.ended - each.discovered for each in runs]),
        Row("CPU of one run, all of Airflow and the task", f"{cpu_s:.1f} s"),
        Row("CPU of Airflow when nothing runs", f"{idle_rate * 100:.0f} % of a core"),
    ]


if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    size = parser.parse_args().runs
    report("no_work", SETTING.format(runs=size), run(size))
