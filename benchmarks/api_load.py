"""Latency of the API for a vehicle's queue at a million vehicles, against PyIceberg alone reading the same vehicle's history.

Two hundred requests a second begin at fixed times, whether or not earlier ones were answered, and each counts from the time at
which it should have begun. The same once more while another client asks heavy questions one after the other: a whole batch, and
a vehicle's history. The client is on the same machine.
"""

import asyncio
import random
import time

import aiohttp
import psutil

from benchmarks._measure import Aim, Row, Size, p50, percentile
from benchmarks._million import World, million
from benchmarks._servers import answers, start_python
from manifold.history.from_lake import read_entries
from manifold.lake.catalog import open_catalog
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings

AIMS: dict[str, Aim] = {}
RATE, CONNECTIONS = 200, 32
READS, WARM_UP_S = 30, 3.0
HEAVY_S = 120  # timeout of a heavy question
SENT_TO_ALL = "autumn"  # the batch that waits for 99 of 100 vehicles
ALONE = "PyIceberg alone, p99"


def run(size: Size) -> list[Row]:
    """Ask the API, then read the lake."""
    requests = round(RATE * size.pick(full=30.0, small=5.0))
    draw = random.Random(1)
    with million(size) as (settings, world):
        log, url, port = settings.home / "api.log", f"{settings.api}/healthz", settings.api_port
        with start_python("manifold.api", port=port, log=log, env=environment(settings), ready=lambda: answers(url)) as server:
            api = psutil.Process(server.pid)
            asyncio.run(_load(settings.api, _some(world, draw, round(RATE * WARM_UP_S))))
            before = sum(api.cpu_times()[:2])
            took = asyncio.run(_load(settings.api, _some(world, draw, requests)))
            cpu_s = sum(api.cpu_times()[:2]) - before
            beside, heavy = asyncio.run(_load_beside_heavy(settings.api, _some(world, draw, requests)))
        _by_pyiceberg(settings, _some(world, draw, 3))
        alone = _by_pyiceberg(settings, _some(world, draw, READS))
    theirs = percentile(alone, 0.99)
    rows = [Row(f"a vehicle's history by {ALONE}", f"{theirs * 1000:.0f} ms")]
    for what, seconds in ((f"`vins/{{vin}}` at {RATE}/s", took), (f"`vins/{{vin}}` at {RATE}/s beside heavy questions", beside)):
        p99 = percentile(seconds, 0.99)
        rows.append(Row(f"{what}, p99", f"{p99 * 1000:.1f} ms (p50 {p50(seconds) * 1000:.1f} ms)", ALONE, p99 / theirs))
    cpu_ms = f"{cpu_s / requests * 1000:.1f} ms"
    return [*rows, Row("CPU of a request", cpu_ms), Row("a heavy answer, p50", f"{p50(heavy):.2f} s, of {len(heavy)}")]


def _some(world: World, draw: random.Random, count: int) -> list[str]:
    """Vehicles at random, among those that have an entry in their queue."""
    return [world.vehicle(draw.randrange(world.vins * 99 // 100)) for _ in range(count)]


async def _load(url: str, vins: list[str]) -> list[float]:
    """Seconds of each request of `/vins/{vin}`, from the time at which it should have begun.

    Raises:
        RuntimeError: one was not answered with that vehicle.
    """
    loop = asyncio.get_running_loop()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:
        began = loop.time()

        async def one(n: int, vin: str) -> float:
            due = began + n / RATE
            await asyncio.sleep(max(0.0, due - loop.time()))
            async with session.get(f"{url}/api/v1/vins/{vin}") as answer:
                found = await answer.json()
            if answer.status != 200 or found["vin"] != vin or not found["entries"]:
                raise RuntimeError(f"{vin}: {answer.status} {found}")
            return loop.time() - due

        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(one(n, vin)) for n, vin in enumerate(vins)]
    return [each.result() for each in asked]


async def _load_beside_heavy(url: str, vins: list[str]) -> tuple[list[float], list[float]]:
    """The seconds of `_load`, and those of each heavy question that was answered meanwhile."""
    heavy: list[float] = []

    async def ask() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(HEAVY_S)) as session:
            for vin in vins:
                for path in (f"batches/{SENT_TO_ALL}", f"vins/{vin}/history"):
                    began = time.perf_counter()
                    async with session.get(f"{url}/api/v1/{path}") as answer:
                        await answer.read()
                        answer.raise_for_status()
                    heavy.append(time.perf_counter() - began)

    asking = asyncio.create_task(ask())
    took = await _load(url, vins)
    if asking.done():
        asking.result()  # raises what ended it
    asking.cancel()
    return took, heavy


def _by_pyiceberg(settings: Settings, vins: list[str]) -> list[float]:
    """Seconds of each read of a vehicle's entries and outcomes, in this process, with the catalog open."""
    catalog, took = open_catalog(settings), []
    for vin in vins:
        began = time.perf_counter()
        if not read_entries(catalog, vin):
            raise RuntimeError(f"the lake has nothing of {vin}")
        took.append(time.perf_counter() - began)
    return took
