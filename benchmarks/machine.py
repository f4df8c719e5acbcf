"""The facts that every benchmark prints beside its figures: machine and versions; and the format of results."""

import json
import platform
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import ParamSpec

import psutil
from rich.console import Console
from rich.table import Table

from manifold.settings import load_settings

P = ParamSpec("P")
LIBRARIES = ("pyspark", "pyiceberg", "redis", "mqtt5", "pyarrow")
PORTS = ("mqtt_port", "broker_port", "redis_port", "airflow_port", "recorder_port", "tap_port", "api_port")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: what was measured, its ratio to the limit of the same run, and the aim if there is one."""

    what: str
    figure: str
    ratio: str = ""
    aim: str = ""
    met: bool | None = None
    cpu: str = ""  # the same ratio by CPU time, which holds on a busy machine too


@dataclass(frozen=True, slots=True)
class Cost:
    """What some work took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0  # of this process and all its children, Spark's JVM and workers among them

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


def cost_of(work: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> Cost:
    """What `work` takes by the wall clock and in CPU time."""
    wall, cpu = time.perf_counter(), _cpu_s()
    work(*arguments, **named)
    return Cost(time.perf_counter() - wall, _cpu_s() - cpu)


def _cpu_s() -> float:
    """CPU seconds of this process, its children, and those that have ended."""
    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of children that were waited for
    return total


def free_ports() -> dict[str, int]:
    """A free port for every server of a platform, as settings; the one behind the dispatcher's is free for a second replica."""
    with ExitStack() as held:
        ports = {name: _hold(held, 0) for name in PORTS}
        while True:
            with suppress(OSError):
                ports["dispatcher_port"] = _hold(held, 0)
                _hold(held, ports["dispatcher_port"] + 1)
                return ports


def _hold(held: ExitStack, port: int) -> int:
    probe = held.enter_context(socket.create_server(("127.0.0.1", port)))
    taken: int = probe.getsockname()[1]
    return taken


def facts() -> dict[str, str]:
    """The machine and the versions of what was measured."""
    memory = f"{psutil.virtual_memory().total / (1 << 30):.0f} GiB"
    redis = (
        subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False)
        .stdout.split("v=")[-1]
        .split()[0]
    )
    return {
        "machine": f"{psutil.cpu_count()} cores, {memory}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "redis-server": redis,
        **{name: version(name) for name in LIBRARIES},
    }


def report(name: str, setting: str, rows: list[Row]) -> None:
    """Print the figures as a table, and keep them as JSON in `<home>/bench/<name>.json`."""
    table = Table(title=f"{name}: {setting}", title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in ("what", "figure", "ratio", "aim", "met", "ratio by CPU"):
        table.add_column(column)
    for row in rows:
        table.add_row(row.what, row.figure, row.ratio, row.aim, {True: "yes", False: "NO", None: ""}[row.met], row.cpu)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in facts().items()), highlight=False)
    folder: Path = load_settings().home / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    kept = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "setting": setting,
        **facts(),
        "rows": [asdict(row) for row in rows],
    }
    (folder / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
