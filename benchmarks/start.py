"""Times of `manifold demo` and of the platform's start, each with a new home, against fixed limits; memory of the platform.

The CPU of the demo includes every process that it starts. If a check of the demo fails, the benchmark fails. It runs on Linux
only, where a process can adopt descendants whose parent has ended, such as the processes that the supervisor starts. The demo
uses the ports of the settings.
"""

import ctypes
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks._measure import GIB, Cost, Row, Size, at_most, p50
from benchmarks._servers import PREFIX, sandbox
from manifold.sandbox.platform.processes import family
from manifold.sandbox.platform.supervisord import HomeLayout
from manifold.settings import Settings

AIMS = {"`manifold demo`, median": at_most(75, "s"), "start of the platform with Airflow and RabbitMQ": at_most(40, "s")}
PR_SET_CHILD_SUBREAPER = 36  # prctl(2): orphaned descendants become children of this process


def run(size: Size) -> list[Row]:
    """Measure the demo first, then the platform with Airflow."""
    _adopt_orphans(adopts=True)
    costs = [_demo() for _ in range(size.pick(full=3, small=1))]
    _adopt_orphans(adopts=False)
    walls_s = [cost.wall_s for cost in costs]
    median = p50(walls_s)
    began = time.perf_counter()
    with sandbox(with_airflow=True, with_signals=True) as settings:
        started = time.perf_counter() - began
        memory = _memory_gib(settings)
    return [
        Row("`manifold demo`, median", f"{median:.0f} s", value=median),
        Row("`manifold demo`, worst", f"{max(walls_s):.0f} s"),
        Row("CPU of `manifold demo`, all processes", f"{p50([cost.cpu_s for cost in costs]):.0f} s"),
        Row("start of the platform with Airflow and RabbitMQ", f"{started:.1f} s", value=started),
        Row("memory of the platform, all processes", f"{memory:.2f} GiB"),
    ]


def _adopt_orphans(*, adopts: bool) -> None:
    """Make descendants whose parent ends children of this process, or with `adopts=False` children of init again."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def _demo() -> Cost:
    """Run the demo, wait until all processes that it has started have ended, and return its cost."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        cpu_before_s, began = _cpu_s_of_ended(), time.perf_counter()
        env = os.environ | {"MANIFOLD_HOME": str(Path(folder) / "home")}
        subprocess.run([sys.executable, "-m", "manifold.console", "demo"], env=env, check=True)
        wall_s = time.perf_counter() - began
        while orphans := psutil.Process().children():
            psutil.wait_procs(orphans)
        return Cost(wall_s, _cpu_s_of_ended() - cpu_before_s)


def _cpu_s_of_ended() -> float:
    """Return the CPU seconds of all children that have ended, and of their ended descendants."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _memory_gib(settings: Settings) -> float:
    """Return the memory of all processes of the platform; pages that several processes share count once (PSS)."""
    records = HomeLayout(settings.home).recorded().values()
    processes = {process.pid: process for record in records for process in family(record)}
    total = 0
    for process in processes.values():
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / GIB
