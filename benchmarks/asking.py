"""Duration of each query command of `manifold`, as a process of its own, at a million vehicles.

`python -m benchmarks.asking [--vins 1000000]`, a multiple of 10,000 from 20,000 on; `benchmarks.million` says what is there. Each
command is first asked with `--json` and its answer looked at, and then timed without. By the clock: the median of several times.
Processor time: the command's own, with its start and imports; and apart from it that of Redis, of the recorder and of the API.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import Row, free_ports, report
from benchmarks.million import VINS_PER_TRIGGER, World, fill
from manifold.runtime.log import configure_logging
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings, load_settings
from tests.support.servers import answers, start_mosquitto, start_python, start_redis, stopping

VINS, TIMES = 1_000_000, 5
AIM_S, MANY_AIM_S = 1.0, 10.0
WATCHED_S = 1.0  # `manifold watch` looks on for a second before its first line
MANIFOLD = str(Path(sys.executable).with_name("manifold"))

Answer = Any  # what a command prints with --json
Right = Callable[[Answer], object]


@dataclass(frozen=True, slots=True)
class Told:
    """What one answer took, in seconds."""

    wall_s: float
    cpu_s: float
    others: Mapping[str, float]  # processor seconds of the servers meanwhile


@dataclass(frozen=True, slots=True)
class Desk:
    """Where questions are asked: the settings in the environment, and the servers that have work with an answer."""

    env: Mapping[str, str]
    servers: Mapping[str, psutil.Process]

    def ask(self, *arguments: str) -> tuple[Told, str]:
        """Run the command once.

        Raises:
            RuntimeError: it failed.
        """
        before, began = self._cpu(), time.perf_counter()
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen([MANIFOLD, *arguments], env=self.env, stdout=out, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)
            wall_s, after = time.perf_counter() - began, self._cpu()
            out.seek(0)
            said = out.read()
        if status:
            raise RuntimeError(f"manifold {' '.join(arguments)} failed: {said}")
        return Told(wall_s, used.ru_utime + used.ru_stime, {name: after[name] - before[name] for name in before}), said

    def _cpu(self) -> dict[str, float]:
        return {name: sum(process.cpu_times()[:2]) for name, process in self.servers.items()}


@dataclass(frozen=True, slots=True)
class Question:
    """A command, and whether its answer is the right one. `{n}` in a word is another number each time."""

    what: str
    command: Sequence[str]
    right: Right
    spent_s: float = 0.0  # that it waits on purpose
    aim_s: float | None = AIM_S

    def row(self, desk: Desk) -> Row:
        """Ask several times."""
        _, said = desk.ask(*self._words(0), "--json")
        if not self.right(json.loads(said)):
            raise RuntimeError(f"manifold {' '.join(self.command)} answers {said}")
        told = [desk.ask(*self._words(n))[0] for n in range(1, TIMES + 1)]
        return _row(self.what, told, self.spent_s, self.aim_s)

    def _words(self, n: int) -> list[str]:
        return [word.format(n=n) for word in self.command]


def _row(what: str, told: Sequence[Told], spent_s: float = 0.0, aim_s: float | None = None) -> Row:
    walls = [each.wall_s - spent_s for each in told]
    wall_s, best_s = statistics.median(walls), min(walls)
    cpu = f"{statistics.median(each.cpu_s for each in told):.2f} s"
    for name in told[0].others:
        cpu += f", {name} {statistics.median(each.others[name] for each in told):.2f} s"
    met = None if aim_s is None else wall_s < aim_s
    return Row(
        what, f"{wall_s:.2f} s", f"best {best_s:.2f} s" if len(told) > 1 else "", f"< {aim_s:g} s" if aim_s else "", met, cpu
    )


def of_queues(world: World, vin: str) -> list[Question]:
    """What Redis and the counters can tell."""
    return [
        Question("manifold fleet", ["fleet"], lambda told: told["known"] == world.vins),
        Question("manifold queue top", ["queue", "top"], lambda told: len(told["longest"]) == 10),
        Question("manifold queue peek", ["queue", "peek", vin], lambda told: told["length"] == 1),
        Question("manifold vin pending", ["vin", "pending", vin], lambda told: _states(told) == ["pending"]),
        Question("manifold watch, to its first line", ["watch", "--count", "1"], lambda told: told["waiting"], WATCHED_S),
    ]


def of_history(vin: str, where: str = "", aim_s: float | None = AIM_S) -> list[Question]:
    """What has to be looked up in the lake and in the archive."""
    questions = [
        Question(f"manifold vin show{where}", ["vin", "show", vin], lambda told: _states(told) == ["delivered", "pending"]),
        Question(f"manifold vin history{where}", ["vin", "history", vin], lambda told: _states(told) == ["delivered"]),
        Question(f"manifold batch show, in the lake{where}", ["batch", "show", "task_spring_{n}"], _is_delivered),
        Question(f"manifold batch show, in the archive{where}", ["batch", "show", "task_autumn_{n}"], _is_whole),
    ]
    return [replace(question, aim_s=aim_s) for question in questions]


def _states(told: Answer) -> list[str]:
    return [entry["state"] for entry in told["entries"]]


def _is_delivered(told: Answer) -> bool:
    return [batch["states"] for batch in told["batches"]] == [{"delivered": VINS_PER_TRIGGER}]


def _is_whole(told: Answer) -> bool:
    return [batch["vehicles"] for batch in told["batches"]] == [VINS_PER_TRIGGER] and set(told["batches"][0]["states"]) <= {
        "pending",
        "in flight",
    }


def _cancelled(told: Answer) -> bool:
    return set(told["entries"]) <= {"cancelled", "in flight"} and sum(told["entries"].values()) == VINS_PER_TRIGGER


def measure(settings: Settings, world: World, redis_pid: int) -> list[Row]:
    """With a recorder and an API, and then without; the batch of a tenth of the fleet is taken back in between."""
    env, vin = environment(settings), world.vehicle(world.vins // 2 + 7)
    redis = psutil.Process(redis_pid)
    with _service("recorder", settings, env) as recorder, _service("api", settings, env) as api:
        desk = Desk(env, {"Redis": redis, "recorder": recorder, "api": api})
        walk = _row("manifold fleet --fresh, a walk over all keys", [desk.ask("fleet", "--fresh")[0]])
        rows = [question.row(desk) for question in (*of_queues(world, vin), *of_history(vin))]
        some = Question(
            f"manifold batch cancel, {VINS_PER_TRIGGER:,} vehicles", ["batch", "cancel", "task_autumn_1{n}"], _cancelled
        )
        rows.append(some.row(desk))
        rows.append(walk)
        many = f"manifold batch cancel, {world.vins // 10:,} vehicles"
        rows.append(_row(many, [desk.ask("batch", "cancel", "task_spring")[0]], aim_s=MANY_AIM_S))
    desk = Desk(env, {"Redis": redis})
    return rows + [question.row(desk) for question in of_history(vin, ", no API", None)]


@contextmanager
def _service(name: str, settings: Settings, env: Mapping[str, str]) -> Iterator[psutil.Process]:
    """One that answers; the API has the lake open then."""
    port: int = getattr(settings, f"{name}_port")
    url, log = f"http://{settings.host}:{port}/healthz", settings.home / f"{name}.log"
    server = start_python(name, port=port, log=log, env=env, ready=lambda: answers(url))
    with stopping(server):
        yield psutil.Process(server.pid)


def run(vins: int = VINS) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        settings = load_settings(home=Path(folder), with_airflow=False, with_signals=False, **free_ports())
        redis = start_redis(settings.home / "redis", port=settings.redis_port)
        with stopping(redis), stopping(start_mosquitto(settings.home / "broker", port=settings.mqtt_port)):
            return measure(settings, fill(settings, vins), redis.pid)


def setting(vins: int) -> str:
    """What there is."""
    lake = f"{vins:,} id rows and {vins * 9 // 10:,} outcomes in the lake"
    return f"{vins:,} vehicles, {vins * 109 // 100:,} entries in the queues, {lake}"


if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vins", type=int, default=VINS)
    asked = parser.parse_args().vins
    if asked < 20_000 or asked % 10_000:
        parser.error(f"--vins {asked} must be a multiple of 10,000 from 20,000 on")
    report("asking", setting(asked), run(asked))
