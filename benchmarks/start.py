"""The start of the embedded platform and `manifold demo`, each on a fresh home, against fixed limits; memory of the platform.

CPU of the demo is that of every process that it starts. A run in which a check fails is an error. Linux only: only there can a
process adopt children that have left their parent, as the supervisor's do. The demo uses the ports of the settings.
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
    _adopt_orphans(True)
    costs = [_demo() for _ in range(size.pick(full=3, small=1))]
    _adopt_orphans(False)
    walls, median = [cost.wall_s for cost in costs], p50([cost.wall_s for cost in costs])
    began = time.perf_counter()
    with sandbox(with_airflow=True, with_signals=True) as settings:
        started, memory = time.perf_counter() - began, _memory_gib(settings)
    return [
        Row("`manifold demo`, median", f"{median:.0f} s", value=median),
        Row("`manifold demo`, worst", f"{max(walls):.0f} s"),
        Row("CPU of `manifold demo`, all processes", f"{p50([cost.cpu_s for cost in costs]):.0f} s"),
        Row("start of the platform with Airflow and RabbitMQ", f"{started:.1f} s", value=started),
        Row("memory of the platform, all processes", f"{memory:.2f} GiB"),
    ]


def _adopt_orphans(adopts: bool) -> None:
    """Let descendants that lose their parent become children of this process, or of init again."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def _demo() -> Cost:
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


def _memory_gib(settings: Settings) -> float:
    """Memory of every process of the platform; pages that processes share count once (PSS)."""
    found = {each.pid: each for record in HomeLayout(settings.home).recorded().values() for each in family(record)}
    total = 0
    for process in found.values():
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / GIB
