"""The fault injector: one fault at a time, chosen by a seed; each is applied, lasts, is healed, and is in the history."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import redis.asyncio as redis

from manifold.contracts import keys
from manifold.contracts.topics import Sign, sign_topic
from manifold.messaging.mqtt import Mqtt
from manifold.runtime import secret_files
from manifold.sandbox.platform import certificates, redis_certificates, supervise
from manifold.sandbox.platform.health import pids
from manifold.sandbox.platform.programs import environment
from manifold.sandbox.platform.supervisord import HomeLayout
from manifold.settings import Settings
from tests.faults.checker import WENT_BACK, WIPED
from tests.faults.clocked_recorder import Clock
from tests.faults.cutter import Cutter
from tests.faults.history import History, Line, What

HEAL_S, LOOK_S = 180.0, 0.3
KINDS = ("broker", "tap", "redis", "recorder", "dispatcher", "campaigner")
KEEPER = "keeper"  # with TLS
FULL_BYTES = 64  # too small for any record
STEPS_S = (-300, -61, 90, 240)
LOUD, SIGNS_AT_ONCE = "LOUD", 500


class Harm(StrEnum):
    """Kinds of faults."""

    KILL = "kill -9"
    STOP = "SIGSTOP, then SIGCONT"
    RESTART = "restart"  # SIGTERM; the supervisor restarts it
    CUT = "connections cut in the middle of packets"
    FULL = "disk full for the journal"
    CLOCK = "clock steps"
    FLOOD = "a vehicle floods with signs"
    BACK = f"{WENT_BACK}: killed, and what it wrote in the last seconds is not in its file"
    RENEW = "every certificate of tap and services renewed"
    POPULATE = "ingest and populate, as Airflow does every five minutes"
    WIPE = f"{WIPED} everything (FLUSHALL), then populate, then rebuild"


@dataclass(frozen=True, slots=True)
class Fault:
    """A scheduled fault."""

    harm: Harm
    kind: str = ""  # of the process
    lasts_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.harm}" + (f" of {self.kind}" if self.kind else "")


def faults(rng: Random, *, stop_s: float, wipes: bool, tls: bool = False) -> Iterator[Fault]:
    """An endless sequence of rounds in which each fault occurs once, in an order chosen by the seed."""
    while True:
        kinds = [Fault(Harm.KILL, kind) for kind in KINDS] + [Fault(Harm.STOP, kind, stop_s) for kind in KINDS]
        kinds += [Fault(Harm.RESTART, "broker"), Fault(Harm.CUT, lasts_s=3.0), Fault(Harm.FULL, "recorder", stop_s / 3)]
        kinds += [Fault(Harm.FLOOD, lasts_s=3.0)]
        kinds += [Fault(Harm.CLOCK, "recorder", stop_s / 3)] * 2 + [Fault(Harm.BACK, "redis", stop_s / 3)]
        kinds += [Fault(Harm.POPULATE), Fault(Harm.WIPE)] if wipes else []
        kinds += [Fault(Harm.RENEW), Fault(Harm.KILL, KEEPER)] if tls else []
        rng.shuffle(kinds)
        yield from kinds


class Injector:
    """Apply faults to the platform of these settings."""

    def __init__(self, settings: Settings, history: History, cutters: Sequence[Cutter], clock: Clock, rng: Random) -> None:
        self._settings, self._history, self._cutters, self._clock, self._rng = settings, history, cutters, clock, rng
        self.done: list[tuple[str, float]] = []  # each fault, and the seconds until the platform was healthy again

    async def inject(self, fault: Fault) -> None:
        """Apply the fault, let it last, heal it, and wait until the platform is healthy.

        Raises:
            TimeoutError: the platform did not recover by itself.
        """
        began = time.time()
        handlers: dict[Harm, Callable[[Fault], Awaitable[None]]] = {
            Harm.KILL: self._kill,
            Harm.STOP: self._stop,
            Harm.BACK: self._back,
            Harm.POPULATE: self._populate,
            Harm.RESTART: self._restart,
            Harm.CUT: self._cut,
            Harm.FULL: self._fill,
            Harm.CLOCK: self._step,
            Harm.FLOOD: self._flood,
            Harm.WIPE: self._wipe,
            Harm.RENEW: self._renew,
        }
        try:
            await handlers[fault.harm](fault)
            await self.healthy()
        finally:
            self._history.tell(Line(began, What.FAULT, until=time.time(), note=str(fault)))
        self.done.append((str(fault), time.time() - began))

    async def healthy(self) -> None:
        """Wait until every part of the platform is healthy."""
        async with asyncio.timeout(HEAL_S):
            while not (await asyncio.to_thread(supervise.status, self._settings)).healthy:  # noqa: ASYNC110  # polled over HTTP
                await asyncio.sleep(LOOK_S)

    def _one(self, kind: str) -> int:
        return self._rng.choice(pids(HomeLayout(self._settings.home))[kind])

    async def _kill(self, fault: Fault) -> None:
        os.kill(pid := self._one(fault.kind), signal.SIGKILL)
        await self._replaced(fault.kind, pid)

    async def _restart(self, fault: Fault) -> None:
        os.kill(pid := self._one(fault.kind), signal.SIGTERM)
        await self._replaced(fault.kind, pid)

    async def _replaced(self, kind: str, pid: int) -> None:
        """Wait until the supervisor has started a replacement: before that, an old answer may look healthy."""
        async with asyncio.timeout(HEAL_S):
            while pid in (found := pids(HomeLayout(self._settings.home)).get(kind, [])) or not found:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    async def _stop(self, fault: Fault) -> None:
        os.kill(pid := self._one(fault.kind), signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _cut(self, fault: Fault) -> None:
        for cutter in self._cutters:
            cutter.cut(0.7)
        await asyncio.sleep(fault.lasts_s)
        for cutter in self._cutters:
            cutter.heal()

    async def _fill(self, fault: Fault) -> None:
        """Let no file of the recorder grow: a full disk, for root too."""
        pid = self._one(fault.kind)
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, most))
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))

    async def _step(self, fault: Fault) -> None:
        """Move the clock for a while and back; half of the time, kill the recorder while its clock is wrong."""
        self._clock.step(self._rng.choice(STEPS_S))
        await asyncio.sleep(fault.lasts_s / 2)
        if self._rng.random() < 0.5:
            await self._kill(fault)
        await asyncio.sleep(fault.lasts_s / 2)
        self._clock.step(0)

    async def _flood(self, fault: Fault) -> None:
        """Publish as many heartbeats of one unknown vehicle as the broker accepts."""
        home, files = self._settings.home, self._settings.tls_files(LOUD)
        if self._settings.tls:
            secret_files.write(secret_files.folder(home) / f"{LOUD}.pem", certificates.issue(home, LOUD))
        async with Mqtt(self._settings.mqtt_for_vehicles, LOUD, tls=files) as vehicle, asyncio.timeout(HEAL_S):
            await vehicle.wait_connected()
            until = time.monotonic() + fault.lasts_s
            while time.monotonic() < until:
                signs = [vehicle.publish(sign_topic(LOUD, Sign.HEARTBEAT), b"", qos=n % 2) for n in range(SIGNS_AT_ONCE)]
                await asyncio.gather(*signs)

    async def _back(self, fault: Fault) -> None:
        """Restore Redis to an earlier state: with every key of that moment and none of the later ones."""
        (file,) = (self._settings.home / "redis" / "appendonlydir").glob("*.incr.aof")
        written = file.stat().st_size
        await asyncio.sleep(fault.lasts_s)
        os.kill(pid := self._one(fault.kind), signal.SIGSTOP)  # so that the supervisor notices its end only after the file is cut
        os.truncate(file, written)
        os.kill(pid, signal.SIGKILL)
        await self._replaced(fault.kind, pid)
        async with redis.Redis.from_url(self._settings.redis) as client, asyncio.timeout(HEAL_S):
            while (before := await _mark(client)) is None:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            while await _mark(client) in (before, None):  # noqa: ASYNC110  # moves once everything lost is restored
                await asyncio.sleep(LOOK_S)

    async def _renew(self, _: Fault) -> None:
        await asyncio.to_thread(certificates.renew, self._settings, within_days=certificates.LEAF_DAYS + 1)
        await asyncio.to_thread(redis_certificates.reload, self._settings)

    async def _populate(self, _: Fault) -> None:
        await self._job("pipelines", "run_all")

    async def _wipe(self, _: Fault) -> None:
        async with redis.Redis.from_url(self._settings.redis) as client:
            await client.flushall()
        output = await self._job("pipelines", "populate", fails=True)
        if "rebuild needed" not in output:
            raise RuntimeError(f"populate did not leave the wiped queues alone: {output}")
        await self._job("manifold.console", "rebuild", "--json")

    async def _job(self, module: str, *arguments: str, fails: bool = False) -> str:
        """The standard error of a job."""
        order = [sys.executable, "-m", module, *arguments]
        env = environment(self._settings)
        done = await asyncio.to_thread(subprocess.run, order, env=env, capture_output=True, text=True, check=False)
        if (done.returncode != 0) is not fails:
            output = f"{done.stderr[-2000:]}{done.stdout[-2000:]}"
            raise RuntimeError(f"{module} {arguments[0]} ended with {done.returncode}: {output}")
        return done.stderr


async def _mark(client: redis.Redis) -> bytes | None:
    """The seq up to which all is loaded according to the queues; None while Redis loads its file."""
    try:
        found = await client.get(keys.watermark_keys(0, of_cluster=False)[0])
    except redis.RedisError:
        return None
    return found if isinstance(found, bytes) else None
