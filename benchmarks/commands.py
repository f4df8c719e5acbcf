"""Each query command of `manifold`, run as a process, at a million vehicles, against fixed limits.

Each command first runs with `--json`, and its output is checked. It is then timed without that option. A row shows the slowest
command of its kind, with the median by the clock. Commands that read the lake use the API, and are measured again without an API.
A batch is also cancelled for 1,000 and for 100,000 vehicles. CPU includes the command's start and imports.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks._measure import Row, Size, at_most, p50
from benchmarks._million import VINS_PER_TRIGGER, World, million
from benchmarks._servers import answers, start_mosquitto, start_python
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings

AIMS = {
    "commands that ask the queues": at_most(1, "s"),
    "commands that ask the lake": at_most(1, "s"),
    "`manifold batch cancel`, 1,000 vehicles": at_most(1, "s"),
    "`manifold batch cancel`, 100,000 vehicles": at_most(10, "s"),
}
TIMED_RUNS = 5
WATCHED_S = 1.0  # `manifold watch` observes for a second before its first line
MANIFOLD = str(Path(sys.executable).with_name("manifold"))

Output = Any  # the JSON that a command prints with --json
Check = Callable[[Output], object]


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of one command: seconds by the clock, and CPU seconds of the command and of the servers."""

    wall_s: float
    cpu_s: float
    servers_s: float


@dataclass(frozen=True, slots=True)
class Desk:
    """The environment of the commands, which contains the settings; and the servers whose CPU counts."""

    env: Mapping[str, str]
    servers: Sequence[psutil.Process]

    def run(self, *arguments: str) -> tuple[Spent, str]:
        """Run the command once; return its cost and its output.

        Raises:
            RuntimeError: the command failed.
        """
        servers_before_s, began = self._cpu_s(), time.perf_counter()
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen([MANIFOLD, *arguments], env=self.env, stdout=out, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - began
            servers_s = self._cpu_s() - servers_before_s
            out.seek(0)
            printed = out.read()
        if status:
            raise RuntimeError(f"manifold {' '.join(arguments)} failed: {printed}")
        return Spent(wall_s, used.ru_utime + used.ru_stime, servers_s), printed

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.servers)


@dataclass(frozen=True, slots=True)
class Question:
    """A command with the check of its output. `{n}` in a word is replaced by a different number for each run."""

    command: Sequence[str]
    is_right: Check
    waits_s: float = 0.0  # seconds for which the command waits on purpose; they do not count

    @property
    def name(self) -> str:
        """The words of the command without its arguments."""
        return " ".join(word for word in self.command if word.isalpha() and word.islower())

    def measure(self, desk: Desk) -> Spent:
        """Check the output of one run, then return the median cost of `TIMED_RUNS` more runs.

        Raises:
            RuntimeError: the output is wrong.
        """
        _, printed = desk.run(*self._words(0), "--json")
        if not self.is_right(json.loads(printed)):
            raise RuntimeError(f"manifold {' '.join(self.command)} answers {printed}")
        runs = [desk.run(*self._words(n))[0] for n in range(1, TIMED_RUNS + 1)]
        wall_s = p50([spent.wall_s for spent in runs]) - self.waits_s
        return Spent(wall_s, p50([spent.cpu_s for spent in runs]), p50([spent.servers_s for spent in runs]))

    def _words(self, n: int) -> list[str]:
        return [word.format(n=n) for word in self.command]


def run(size: Size) -> list[Row]:
    """Measure with a recorder and an API, then measure the commands that read the lake without both."""
    with million(size) as (settings, world), start_mosquitto(settings.home / "broker", port=settings.mqtt_port):
        env = environment(settings)
        vin = world.vehicle(world.vins // 2 + 7)
        with _service("recorder", settings, env) as recorder, _service("api", settings, env) as api:
            desk = Desk(env, [recorder, api])
            fresh, _ = desk.run("fleet", "--fresh")
            rows = [_slowest("commands that ask the queues", _queue_questions(world, vin), desk)]
            rows.append(_slowest("commands that ask the lake", _history_questions(vin), desk))
            few = Question(["batch", "cancel", "task_autumn_1{n}"], _is_cancelled).measure(desk)
            rows.append(_row(f"`manifold batch cancel`, {VINS_PER_TRIGGER:,} vehicles", few))
            many, _ = desk.run("batch", "cancel", "task_spring")
            rows.append(_row(f"`manifold batch cancel`, {world.vins // 10:,} vehicles", many))
        rows.append(_slowest("commands that ask the lake, no API", _history_questions(vin), Desk(env, [])))
        return [*rows, _row("`manifold fleet --fresh`, all keys of Redis", fresh)]


def _slowest(what: str, questions: Sequence[Question], desk: Desk) -> Row:
    measured = [(question.measure(desk), question.name) for question in questions]
    slowest, name = max(measured, key=lambda pair: pair[0].wall_s)
    return _row(what, slowest, f", `{name}`")


def _row(what: str, spent: Spent, name: str = "") -> Row:
    return Row(what, f"{spent.wall_s:.2f} s{name}; CPU {spent.cpu_s + spent.servers_s:.2f} s", value=spent.wall_s)


def _queue_questions(world: World, vin: str) -> list[Question]:
    return [
        Question(["fleet"], lambda output: output["known"] == world.vins),
        Question(["queue", "top"], lambda output: len(output["longest"]) == 10),
        Question(["queue", "peek", vin], lambda output: output["length"] == 1),
        Question(["vin", "pending", vin], lambda output: _states(output) == ["pending"]),
        Question(["watch", "--count", "1"], lambda output: output["waiting"], WATCHED_S),
    ]


def _history_questions(vin: str) -> list[Question]:
    """Return the commands that read the lake, or the part of the archive that is not ingested yet."""
    return [
        Question(["vin", "show", vin], lambda output: _states(output) == ["delivered", "pending"]),
        Question(["vin", "history", vin], lambda output: _states(output) == ["delivered"]),
        Question(["batch", "show", "task_spring_{n}"], _is_delivered),
        Question(["batch", "show", "task_autumn_{n}"], _is_pending),
    ]


def _states(output: Output) -> list[str]:
    return [entry["state"] for entry in output["entries"]]


def _is_delivered(output: Output) -> bool:
    return [batch["states"] for batch in output["batches"]] == [{"delivered": VINS_PER_TRIGGER}]


def _is_pending(output: Output) -> bool:
    return [batch["vehicles"] for batch in output["batches"]] == [VINS_PER_TRIGGER] and set(output["batches"][0]["states"]) <= {
        "pending",
        "in flight",
    }


def _is_cancelled(output: Output) -> bool:
    return set(output["entries"]) <= {"cancelled", "in flight"} and sum(output["entries"].values()) == VINS_PER_TRIGGER


@contextmanager
def _service(name: str, settings: Settings, env: Mapping[str, str]) -> Iterator[psutil.Process]:
    """Run a service of the platform until the block ends. An API that answers has opened the lake."""
    port: int = getattr(settings, f"{name}_port")
    url, log = f"http://{settings.host}:{port}/healthz", settings.home / f"{name}.log"
    with start_python(f"manifold.{name}", port=port, log=log, env=env, ready=lambda: answers(url)) as server:
        yield psutil.Process(server.pid)
