"""A run of `ingest_archives` that finds nothing to do: from when it was due to its success, by Airflow's own record.

Starts the embedded platform with Airflow on free ports, in a folder of its own, and triggers one run after the other through
Airflow's REST API. A scheduled run takes the same way from its due time on.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from benchmarks.airflow_runs import DAG, WITHIN_S, Load, measure, platform
from benchmarks.command import count_of
from benchmarks.machine import Row, report
from manifold.runtime.log import configure_logging
from manifold.sandbox.platform.airflow_api import AirflowApi

RUNS = 10
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


def _one(api: AirflowApi) -> Run:
    run_id = api.trigger_dag(DAG)
    state = api.wait(DAG, run_id, within_s=WITHIN_S)
    states = api.task_states(DAG, run_id)
    if state != "success" or states["ingest"] != "skipped":
        raise RuntimeError(f"run {run_id} was to find nothing: {state}, {states}")
    return of_record(api.run(DAG, run_id), api.task(DAG, run_id, "discover"))


def run(runs: int = RUNS) -> list[Row]:
    """Measure on a platform of its own."""
    with platform() as settings:
        return _rows(*measure(settings, _one, runs, idle_s=IDLE_S))


def _rows(runs: list[Run], load: Load) -> list[Row]:
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
        Row("CPU of one run, all of Airflow and the task", f"{load.run_cpu_s:.1f} s"),
        Row("CPU of Airflow when nothing runs", f"{load.idle_rate * 100:.0f} % of a core"),
    ]


if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    size = count_of(__doc__, "runs", RUNS)
    report("no_work", SETTING.format(runs=size), run(size))
