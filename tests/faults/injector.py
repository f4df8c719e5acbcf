"""Those who do harm, one at a time, as a seed says: each fault is done, lasts, is healed, and stands in the history."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import redis.asyncio as redis

from contracts.settings import Settings
from sandbox import supervise
from sandbox.health import pids
from sandbox.programs import environment
from sandbox.supervisord import Place
from tests.faults.checker import WIPED
from tests.faults.clocked_recorder import Clock
from tests.faults.cutter import Cutter
from tests.faults.history import History, Line, What

HEAL_S, LOOK_S = 180.0, 0.3
KINDS = ("broker", "tap", "redis", "recorder", "dispatcher")
FULL_BYTES = 64  # no record fits
STEPS_S = (-300, -61, 90, 240)


class Harm(StrEnum):
    """What can be done."""

    KILL = "kill -9"
    STOP = "SIGSTOP, then SIGCONT"
    RESTART = "restart"  # SIGTERM; the supervisor starts it again
    CUT = "connections cut in the middle of packets"
    FULL = "disk full for the journal"
    CLOCK = "clock steps"
    WIPE = f"{WIPED} everything (FLUSHALL), then rebuild"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to come."""

    harm: Harm
    kind: str = ""  # of the process
    lasts_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.harm}" + (f" of {self.kind}" if self.kind else "")


def faults(rng: Random, *, stop_s: float, wipes: bool) -> Iterator[Fault]:
    """Without end: rounds in which each fault comes once, in an order of the seed's."""
    while True:
        kinds = [Fault(Harm.KILL, kind) for kind in KINDS] + [Fault(Harm.STOP, kind, stop_s) for kind in KINDS]
        kinds += [Fault(Harm.RESTART, "broker"), Fault(Harm.CUT, lasts_s=3.0), Fault(Harm.FULL, "recorder", stop_s / 3)]
        kinds += [Fault(Harm.CLOCK, "recorder", stop_s / 3)] * 2 + ([Fault(Harm.WIPE)] if wipes else [])
        rng.shuffle(kinds)
        yield from kinds


class Injector:
    """Carries faults out on the platform of these settings."""

    def __init__(self, settings: Settings, history: History, cutter: Cutter, clock: Clock, rng: Random) -> None:
        self._settings, self._history, self._cutter, self._clock, self._rng = settings, history, cutter, clock, rng
        self.done: list[tuple[str, float]] = []  # each fault, and how many seconds until the platform was healthy again

    async def inject(self, fault: Fault) -> None:
        """Do it, let it last, heal it, and wait until the platform is healthy.

        Raises:
            TimeoutError: it did not become healthy by itself.
        """
        began = time.time()
        doing: dict[Harm, Callable[[Fault], Awaitable[None]]] = {
            Harm.KILL: self._kill,
            Harm.STOP: self._stop,
            Harm.RESTART: self._restart,
            Harm.CUT: self._cut,
            Harm.FULL: self._fill,
            Harm.CLOCK: self._step,
            Harm.WIPE: self._wipe,
        }
        try:
            await doing[fault.harm](fault)
            await self.healthy()
        finally:
            self._history.tell(Line(began, What.FAULT, until=time.time(), note=str(fault)))
        self.done.append((str(fault), time.time() - began))

    async def healthy(self) -> None:
        """Return when every part of the platform says that it serves."""
        async with asyncio.timeout(HEAL_S):
            while not (await asyncio.to_thread(supervise.status, self._settings)).healthy:  # noqa: ASYNC110  # asked by HTTP
                await asyncio.sleep(LOOK_S)

    def _one(self, kind: str) -> int:
        return self._rng.choice(pids(Place(self._settings.home))[kind])

    async def _kill(self, fault: Fault) -> None:
        os.kill(pid := self._one(fault.kind), signal.SIGKILL)
        await self._replaced(fault.kind, pid)

    async def _restart(self, fault: Fault) -> None:
        os.kill(pid := self._one(fault.kind), signal.SIGTERM)
        await self._replaced(fault.kind, pid)

    async def _replaced(self, kind: str, pid: int) -> None:
        """The supervisor has started another in its place: until then an old answer may look healthy."""
        async with asyncio.timeout(HEAL_S):
            while pid in (found := pids(Place(self._settings.home))[kind]) or not found:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    async def _stop(self, fault: Fault) -> None:
        os.kill(pid := self._one(fault.kind), signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _cut(self, fault: Fault) -> None:
        self._cutter.cut(0.7)
        await asyncio.sleep(fault.lasts_s)
        self._cutter.heal()

    async def _fill(self, fault: Fault) -> None:
        """No file of the recorder may grow: a disk that is full, for root too."""
        pid = self._one(fault.kind)
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, most))
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))

    async def _step(self, fault: Fault) -> None:
        """There, for a while, and back; half of the times the recorder is killed while its clock is wrong."""
        self._clock.step(self._rng.choice(STEPS_S))
        await asyncio.sleep(fault.lasts_s / 2)
        if self._rng.random() < 0.5:
            await self._kill(fault)
        await asyncio.sleep(fault.lasts_s / 2)
        self._clock.step(0)

    async def _wipe(self, _: Fault) -> None:
        async with redis.Redis.from_url(self._settings.redis) as client:
            await client.flushall()
        order = [sys.executable, "-m", "console", "rebuild", "--json"]
        answer = await asyncio.to_thread(
            subprocess.run, order, env=environment(self._settings), capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            raise RuntimeError(f"manifold rebuild ended with {answer.returncode}: {answer.stderr[-2000:]}{answer.stdout[-2000:]}")
