"""`manifold demo`, start to end, on fresh homes: by the wall clock, and the CPU time of every process that it starts.

`python -m benchmarks.main_job [--runs 3]`. A run in which not all held is an error. On Linux alone, which can tell the CPU time
of processes that have left their parent, as the supervisor does. It uses the ports of the settings.
"""

import ctypes
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.command import PREFIX, count_of
from benchmarks.machine import Cost, Row, report
from manifold.runtime.log import configure_logging

RUNS = 3
AIM_S = 45.0
SETTING = "{runs} runs of `manifold demo`, one after the other, each on a home of its own; load before: {load}"
PR_SET_CHILD_SUBREAPER = 36  # of Linux: whoever loses its parent becomes a child of this process


def run(runs: int = RUNS) -> list[Row]:
    """Measure so many runs."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    costs = [_one() for _ in range(runs)]
    walls, cpus = [cost.wall_s for cost in costs], [cost.cpu_s for cost in costs]
    median = statistics.median(walls)
    return [
        Row("the main job, median", f"{median:.0f} s", aim=f"≤ {AIM_S:g} s", met=median <= AIM_S),
        Row("… worst", f"{max(walls):.0f} s"),
        Row("CPU of all its processes, median (worst)", f"{statistics.median(cpus):.0f} s ({max(cpus):.0f} s)"),
    ]


def _one() -> Cost:
    with TemporaryDirectory(prefix=PREFIX) as folder:
        before, began = _cpu_s_of_ended(), time.perf_counter()
        env = os.environ | {"MANIFOLD_HOME": str(Path(folder) / "home")}
        subprocess.run([sys.executable, "-m", "manifold.console", "demo"], env=env, check=True)
        wall_s = time.perf_counter() - began
        while orphans := psutil.Process().children():
            psutil.wait_procs(orphans)
        return Cost(wall_s, _cpu_s_of_ended() - before)


def _cpu_s_of_ended() -> float:
    """CPU seconds of all children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    runs, load = count_of(__doc__, "runs", RUNS), os.getloadavg()[0]
    report("main_job", SETTING.format(runs=runs, load=f"{load:.0f}"), run(runs))
