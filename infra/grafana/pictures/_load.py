"""What the platform of the pictures is given to do: a fleet on busy roads, batches, campaigns, signals, questions."""

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

ROADS = replace(DRIVING, compacted_queues=True, heartbeat_s=20.0)
SEED = 1
SIGNED_AT_ONCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much is to do. Batches come in pairs of which one is small; one of twelve triggers is malformed."""

    vehicles: int = 200
    batch_every_s: float = 4.0
    writes_per_s: float = 20.0  # of compacted queues
    signals_per_s: float = 15.0
    ask_every_s: float = 1.0  # of the API
    ingest_every_s: float = 90.0


async def run(settings: Settings, load: Load, for_s: float) -> None:
    """Return after so many seconds."""
    known = vins(load.vehicles, SEED)
    async with Fleet(settings, known, seed=SEED, behaviour=ROADS) as fleet, Publisher(settings) as platform:
        await fleet.connect()
        batches, writes = _Batches(platform, known), _Writes(platform, known)
        works = [
            _every(load.batch_every_s, batches.send),
            _every(1 / load.writes_per_s, writes.send),
            _every(load.ask_every_s, lambda: _ask(settings, known)),
            _every(load.ingest_every_s, lambda: asyncio.to_thread(_ingest, settings)),
        ]
        if settings.with_campaigns:
            works.append(_campaigns(settings, platform, known))
        if settings.with_signals:
            works.append(_every(0, _Signals(settings, load).send))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s), asyncio.TaskGroup() as tasks:
                for work in works:
                    tasks.create_task(work)


async def _every(seconds: float, do: Callable[[], Awaitable[object]]) -> None:
    while True:
        await do()
        await asyncio.sleep(seconds)


class _Batches:
    """Data for some of the vehicles."""

    def __init__(self, platform: Publisher, known: Sequence[Owner]) -> None:
        self._platform, self._known, self._chance, self._count = platform, known, random.Random(SEED), 0

    async def send(self) -> None:
        self._count += 1
        if self._count % 12 == 0:
            await self._platform.publish(topics.TRIGGER, b'{"ids": ["VIN-1", 7], "request_id": "task_bad"}')
            return
        payload = self._chance.randbytes(self._chance.choice((2_000, 20_000)))
        chosen = self._chance.sample(self._known, len(self._known) // self._chance.choice((2, 4, 10)))
        late = self._count % 10 == 0  # the data comes after its trigger: entries are parked until then
        data_id = sha1_hex(payload)
        if not late:
            await self._platform.data(data_id, payload)
        await self._platform.trigger(chosen, f"task_{self._count}", data_id)
        if late:
            await self._platform.data(data_id, payload)


class _Writes:
    """New states of a few keys of each vehicle."""

    def __init__(self, platform: Publisher, known: Sequence[Owner]) -> None:
        self._platform, self._known, self._chance = platform, known, random.Random(SEED)

    async def send(self) -> None:
        client, key = self._chance.choice(self._known), f"climate/{self._chance.randrange(5)}"
        await self._platform.write(client, key, self._chance.randbytes(100))


class _Signals:
    """What gateways send of 20 devices, some of it hostile; signed as it is sent, for what is signed is soon too old."""

    def __init__(self, settings: Settings, load: Load) -> None:
        self._settings, self._per_s = settings, load.signals_per_s
        self._mix = SignalMix(SEED, 20, hmac_secrets(settings)[0])

    async def send(self) -> None:
        made = list(self._mix.messages(round(self._per_s * SIGNED_AT_ONCE_S), datetime.now(UTC)))
        await publish(self._settings, made, seed=SEED, rate=self._per_s)


async def _campaigns(settings: Settings, platform: Publisher, known: Sequence[Owner]) -> None:
    """A campaign with a gate that soaks and a rate, paused for a while; then the next one."""
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


async def _ask(settings: Settings, known: Sequence[Owner]) -> None:
    base = f"http://{settings.loopback}:{settings.api_port}/api/v1"
    async with httpx.AsyncClient(timeout=20) as client:
        for path in ("fleet", f"vins/{random.choice(known)}", "batches/task_1"):
            await client.get(f"{base}/{path}")


def _ingest(settings: Settings) -> None:
    """As Airflow would, in a process of its own."""
    command = [sys.executable, "-m", "pipelines", "run_all"]
    subprocess.run(command, env=environment(settings), capture_output=True, check=True)
