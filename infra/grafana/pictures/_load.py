"""Load for the platform of the pictures: a fleet on busy roads, batches, campaigns, signals, API requests, ingest runs."""

import asyncio
import contextlib
import itertools
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import httpx

from manifold.contracts import campaigns as r
from manifold.contracts import topics
from manifold.contracts.messages import sha1_hex
from manifold.contracts.names import Owner
from manifold.messaging.amqp import hmac_secrets
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet, vins
from manifold.sandbox.fleet._behaviour_model import DRIVING
from manifold.sandbox.fleet.gateways import SignalMix, publish
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings

BUSY_ROADS = replace(DRIVING, compacted_queues=True, heartbeat_s=20.0)
SEED = 1
SIGNAL_BATCH_S = 20.0  # signals for so many seconds are generated and signed at once


@dataclass(frozen=True, slots=True)
class Load:
    """The amount of load. One of twelve triggers is malformed."""

    vehicles: int = 200
    batch_every_s: float = 4.0
    writes_per_s: float = 20.0  # of compacted queues
    signals_per_s: float = 15.0
    ask_every_s: float = 1.0  # of the API
    ingest_every_s: float = 90.0


async def generate_load(settings: Settings, load: Load, for_s: float) -> None:
    """Generate the load for `for_s` seconds."""
    known = vins(load.vehicles, SEED)
    async with Fleet(settings, known, seed=SEED, behaviour=BUSY_ROADS) as fleet, Publisher(settings) as platform:
        await fleet.connect()
        batches, writes = _Batches(platform, known), _Writes(platform, known)
        jobs = [
            _every(load.batch_every_s, batches.send),
            _every(1 / load.writes_per_s, writes.send),
            _every(load.ask_every_s, lambda: _request_api(settings, known)),
            _every(load.ingest_every_s, lambda: asyncio.to_thread(_ingest, settings)),
        ]
        if settings.with_campaigns:
            jobs.append(_campaigns(settings, platform, known))
        if settings.with_signals:
            jobs.append(_every(0, _Signals(settings, load).send))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s), asyncio.TaskGroup() as tasks:
                for job in jobs:
                    tasks.create_task(job)


async def _every(pause_s: float, action: Callable[[], Awaitable[object]]) -> None:
    """Repeat the action forever, with pauses."""
    while True:
        await action()
        await asyncio.sleep(pause_s)


class _Batches:
    """Batches: data, and triggers for some of the vehicles."""

    def __init__(self, platform: Publisher, known: Sequence[Owner]) -> None:
        self._platform = platform
        self._known = known
        self._rng = random.Random(SEED)
        self._count = 0

    async def send(self) -> None:
        self._count += 1
        if self._count % 12 == 0:
            await self._platform.publish(topics.TRIGGER, b'{"ids": ["VIN-1", 7], "request_id": "task_bad"}')
            return
        payload = self._rng.randbytes(self._rng.choice((2_000, 20_000)))
        targets = self._rng.sample(self._known, len(self._known) // self._rng.choice((2, 4, 10)))
        is_data_late = self._count % 10 == 0  # published after its trigger, whose entries are parked until then
        data_id = sha1_hex(payload)
        if not is_data_late:
            await self._platform.data(data_id, payload)
        await self._platform.trigger(targets, f"task_{self._count}", data_id)
        if is_data_late:
            await self._platform.data(data_id, payload)


class _Writes:
    """Writes to compacted queues: new values for a few keys of each vehicle."""

    def __init__(self, platform: Publisher, known: Sequence[Owner]) -> None:
        self._platform = platform
        self._known = known
        self._rng = random.Random(SEED)

    async def send(self) -> None:
        vin = self._rng.choice(self._known)
        key = f"climate/{self._rng.randrange(5)}"
        await self._platform.write(vin, key, self._rng.randbytes(100))


class _Signals:
    """Signals of 20 devices, some of them invalid.

    They are generated in small batches, because the AMQP door refuses signatures that are too old.
    """

    def __init__(self, settings: Settings, load: Load) -> None:
        self._settings = settings
        self._per_s = load.signals_per_s
        self._mix = SignalMix(SEED, 20, hmac_secrets(settings)[0])

    async def send(self) -> None:
        messages = list(self._mix.messages(round(self._per_s * SIGNAL_BATCH_S), datetime.now(UTC)))
        await publish(self._settings, messages, seed=SEED, rate=self._per_s)


async def _campaigns(settings: Settings, platform: Publisher, known: Sequence[Owner]) -> None:
    """Run one campaign after another; each has a gate with a soak time and a rate, and is paused for a while."""
    async with Publisher(settings, settings.mqtt_username_campaigns) as orders:
        for number in itertools.count(1):
            name = f"maps-{number}"
            ends = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")
            waves = [
                {"name": "canary", "size": "10%", "gate": {"released": "50%", "soak": "20s"}},
                {"name": "rest", "size": "rest"},
            ]
            plan = {"campaign": name, "data_id": name, "targets": {"vins": list(known)}, "waves": waves, "rate": 60, "ends": ends}
            await platform.data(name, b"map")
            await orders.order(r.Propose(name, "anna", plan=plan))
            await orders.order(r.Approve(name, "ben"))
            await asyncio.sleep(80)
            await orders.order(r.Pause(name, "ben", why="a report of smoke"))
            await asyncio.sleep(20)
            await orders.order(r.Resume(name, "ben"))
            await asyncio.sleep(60)


async def _request_api(settings: Settings, known: Sequence[Owner]) -> None:
    base = f"http://{settings.loopback}:{settings.api_port}/api/v1"
    async with httpx.AsyncClient(timeout=20) as client:
        for path in ("fleet", f"vins/{random.choice(known)}", "batches/task_1"):
            await client.get(f"{base}/{path}")


def _ingest(settings: Settings) -> None:
    """Run the pipelines once, in a process of their own, as Airflow does."""
    command = [sys.executable, "-m", "pipelines", "run_all"]
    subprocess.run(command, env=environment(settings), capture_output=True, check=True)
