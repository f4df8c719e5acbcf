"""Each query command of `manifold`, as a process of its own, at a million vehicles, against fixed limits.

Each command is first run with `--json` and its answer checked, and then timed without. Rows are medians by the clock, the
slowest command of each kind; a command of the lake asks the API, and once more where none runs. A batch is also cancelled for
1,000 and for 100,000 vehicles. CPU includes the command's start and imports.
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
TIMES = 5
WATCHED_S = 1.0  # `manifold watch` observes for a second before its first line
MANIFOLD = str(Path(sys.executable).with_name("manifold"))

Answer = Any  # what a command prints with --json
Right = Callable[[Answer], object]


@dataclass(frozen=True, slots=True)
class Spent:
    """What one answer took: seconds by the clock, and of CPU of the command and of the servers."""

    wall_s: float
    cpu_s: float
    servers_s: float


@dataclass(frozen=True, slots=True)
class Desk:
    """Where commands run: the settings in the environment, and the servers that work for an answer."""

    env: Mapping[str, str]
    servers: Sequence[psutil.Process]

    def ask(self, *arguments: str) -> tuple[Spent, str]:
        """Run the command once; return its cost and its output.

        Raises:
            RuntimeError: it failed.
        """
        before, began = self._cpu_s(), time.perf_counter()
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen([MANIFOLD, *arguments], env=self.env, stdout=out, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)
            wall_s, after = time.perf_counter() - began, self._cpu_s()
            out.seek(0)
            printed = out.read()
        if status:
            raise RuntimeError(f"manifold {' '.join(arguments)} failed: {printed}")
        return Spent(wall_s, used.ru_utime + used.ru_stime, after - before), printed

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.servers)


@dataclass(frozen=True, slots=True)
class Question:
    """A command, and whether its answer is right. `{n}` in a word is another number each time."""

    command: Sequence[str]
    is_right: Right
    waits_s: float = 0.0  # on purpose

    @property
    def name(self) -> str:
        """The command without its arguments."""
        return " ".join(word for word in self.command if word.isalpha() and word.islower())

    def ask(self, desk: Desk) -> Spent:
        """Check one answer, then return the median cost of several.

        Raises:
            RuntimeError: the answer is wrong.
        """
        _, printed = desk.ask(*self._words(0), "--json")
        if not self.is_right(json.loads(printed)):
            raise RuntimeError(f"manifold {' '.join(self.command)} answers {printed}")
        spent = [desk.ask(*self._words(n))[0] for n in range(1, TIMES + 1)]
        wall_s = p50([each.wall_s for each in spent]) - self.waits_s
        return Spent(wall_s, p50([each.cpu_s for each in spent]), p50([each.servers_s for each in spent]))

    def _words(self, n: int) -> list[str]:
        return [word.format(n=n) for word in self.command]


def run(size: Size) -> list[Row]:
    """Measure with a recorder and an API, and then without."""
    with million(size) as (settings, world), start_mosquitto(settings.home / "broker", port=settings.mqtt_port):
        env, vin = environment(settings), world.vehicle(world.vins // 2 + 7)
        with _service("recorder", settings, env) as recorder, _service("api", settings, env) as api:
            desk = Desk(env, [recorder, api])
            fresh, _ = desk.ask("fleet", "--fresh")
            rows = [_slowest("commands that ask the queues", _of_queues(world, vin), desk)]
            rows.append(_slowest("commands that ask the lake", _of_history(vin), desk))
            few = Question(["batch", "cancel", "task_autumn_1{n}"], _is_cancelled).ask(desk)
            rows.append(_row(f"`manifold batch cancel`, {VINS_PER_TRIGGER:,} vehicles", few))
            many, _ = desk.ask("batch", "cancel", "task_spring")
            rows.append(_row(f"`manifold batch cancel`, {world.vins // 10:,} vehicles", many))
        rows.append(_slowest("commands that ask the lake, no API", _of_history(vin), Desk(env, [])))
        return [*rows, _row("`manifold fleet --fresh`, all keys of Redis", fresh)]


def _slowest(what: str, questions: Sequence[Question], desk: Desk) -> Row:
    spent = [(question.ask(desk), question.name) for question in questions]
    slowest, name = max(spent, key=lambda each: each[0].wall_s)
    return _row(what, slowest, f", `{name}`")


def _row(what: str, spent: Spent, name: str = "") -> Row:
    cpu = f"CPU {spent.cpu_s:.2f} s, recorder and API {spent.servers_s:.2f} s"
    return Row(what, f"{spent.wall_s:.2f} s{name} ({cpu})", value=spent.wall_s)


def _of_queues(world: World, vin: str) -> list[Question]:
    return [
        Question(["fleet"], lambda found: found["known"] == world.vins),
        Question(["queue", "top"], lambda found: len(found["longest"]) == 10),
        Question(["queue", "peek", vin], lambda found: found["length"] == 1),
        Question(["vin", "pending", vin], lambda found: _states(found) == ["pending"]),
        Question(["watch", "--count", "1"], lambda found: found["waiting"], WATCHED_S),
    ]


def _of_history(vin: str) -> list[Question]:
    """Commands whose answer is in the lake, or in the archive that is not ingested yet."""
    return [
        Question(["vin", "show", vin], lambda found: _states(found) == ["delivered", "pending"]),
        Question(["vin", "history", vin], lambda found: _states(found) == ["delivered"]),
        Question(["batch", "show", "task_spring_{n}"], _is_delivered),
        Question(["batch", "show", "task_autumn_{n}"], _is_whole),
    ]


def _states(found: Answer) -> list[str]:
    return [entry["state"] for entry in found["entries"]]


def _is_delivered(found: Answer) -> bool:
    return [batch["states"] for batch in found["batches"]] == [{"delivered": VINS_PER_TRIGGER}]


def _is_whole(found: Answer) -> bool:
    return [batch["vehicles"] for batch in found["batches"]] == [VINS_PER_TRIGGER] and set(found["batches"][0]["states"]) <= {
        "pending",
        "in flight",
    }


def _is_cancelled(found: Answer) -> bool:
    return set(found["entries"]) <= {"cancelled", "in flight"} and sum(found["entries"].values()) == VINS_PER_TRIGGER


@contextmanager
def _service(name: str, settings: Settings, env: Mapping[str, str]) -> Iterator[psutil.Process]:
    """Run a service of the platform; when the API answers, it has the lake open."""
    port: int = getattr(settings, f"{name}_port")
    url, log = f"http://{settings.host}:{port}/healthz", settings.home / f"{name}.log"
    with start_python(f"manifold.{name}", port=port, log=log, env=env, ready=lambda: answers(url)) as server:
        yield psutil.Process(server.pid)
