"""Runs of `ingest_archives` in a real Airflow, one after the other, and what they take beyond an idle Airflow."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import psutil

from benchmarks.command import PREFIX
from benchmarks.machine import free_ports
from manifold.sandbox.platform import airflow, supervise
from manifold.sandbox.platform.airflow_api import AirflowApi
from manifold.sandbox.platform.airflow_users import logged_in
from manifold.sandbox.platform.processes import family
from manifold.sandbox.platform.supervisord import HomeLayout
from manifold.settings import Settings, load_settings

DAG = "ingest_archives"
PAUSE_S = 2.3  # no multiple of the scheduler's turn
WITHIN_S = 300
SCHEDULES = ("ingest", "compact", "garbage", "verify", "check")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Load:
    """What Airflow and all that it starts take."""

    run_cpu_s: float  # CPU seconds of one run, without what an idle Airflow takes
    idle_rate: float  # CPU seconds a second where nothing runs


@contextmanager
def platform() -> Iterator[Settings]:
    """An embedded platform with Airflow on free ports, where nothing runs that is not triggered."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        none = {f"{what}_schedule": "" for what in SCHEDULES}
        settings = load_settings(home=Path(folder), with_airflow=True, with_signals=False, **none, **free_ports())
        supervise.up(settings)
        try:
            yield settings
        finally:
            supervise.down(settings)


def measure(settings: Settings, one: Callable[[AirflowApi], R], runs: int, *, idle_s: float) -> tuple[list[R], Load]:
    """What `one` says of each of the runs that it triggers, after two that count for nothing: later ones find much in memory."""
    with logged_in(settings, airflow.url(settings)) as api:
        api.wait_known(DAG, within_s=WITHIN_S)
        for _ in range(2):
            one(api)
        time.sleep(PAUSE_S)
        idle = _cpu_s(settings)
        time.sleep(idle_s)
        idle_rate = (_cpu_s(settings) - idle) / idle_s
        cpu, began, done = _cpu_s(settings), time.monotonic(), []
        for _ in range(runs):
            done.append(one(api))
            time.sleep(PAUSE_S)
        beyond = _cpu_s(settings) - cpu - idle_rate * (time.monotonic() - began)
    return done, Load(beyond / runs, idle_rate)


def _cpu_s(settings: Settings) -> float:
    """CPU seconds of Airflow and of all that it has started, also of what has ended."""
    total = 0.0
    for process in family(HomeLayout(settings.home).recorded()["airflow"]):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total
