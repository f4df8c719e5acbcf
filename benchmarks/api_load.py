"""Latency of the API for a vehicle's queue at a million vehicles, against PyIceberg alone reading the same vehicle's history.

Two hundred requests a second begin at fixed times, even if earlier requests were not answered yet. The latency of a request
counts from the time at which it is due. The measurement is repeated while another client sends heavy requests one after the
other: for a whole batch, and for a vehicle's history. Both clients run on the same machine as the API.
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
HEAVY_TIMEOUT_S = 120  # timeout of a heavy request
SENT_TO_ALL = "autumn"  # the batch that waits for 99 of 100 vehicles
ALONE = "PyIceberg alone, p99"


def run(size: Size) -> list[Row]:
    """Measure the API first, then PyIceberg."""
    requests = round(RATE * size.pick(full=30.0, small=5.0))
    generator = random.Random(1)
    with million(size) as (settings, world):
        log, url, port = settings.home / "api.log", f"{settings.api}/healthz", settings.api_port
        with start_python("manifold.api", port=port, log=log, env=environment(settings), ready=lambda: answers(url)) as server:
            api = psutil.Process(server.pid)
            asyncio.run(_load(settings.api, _sample(world, generator, round(RATE * WARM_UP_S))))
            cpu_before_s = sum(api.cpu_times()[:2])
            latencies_s = asyncio.run(_load(settings.api, _sample(world, generator, requests)))
            cpu_s = sum(api.cpu_times()[:2]) - cpu_before_s
            beside_heavy_s, heavy_s = asyncio.run(_load_beside_heavy(settings.api, _sample(world, generator, requests)))
        _by_pyiceberg(settings, _sample(world, generator, 3))
        alone = _by_pyiceberg(settings, _sample(world, generator, READS))
    pyiceberg_p99_s = percentile(alone, 0.99)
    rows = [Row(f"a vehicle's history by {ALONE}", f"{pyiceberg_p99_s * 1000:.0f} ms")]
    what = f"`vins/{{vin}}` at {RATE}/s"
    for name, seconds in ((what, latencies_s), (f"{what} beside heavy questions", beside_heavy_s)):
        p99 = percentile(seconds, 0.99)
        figure = f"{p99 * 1000:.1f} ms (p50 {p50(seconds) * 1000:.1f} ms)"
        rows.append(Row(f"{name}, p99", figure, ALONE, p99 / pyiceberg_p99_s))
    cpu_ms = f"{cpu_s / requests * 1000:.1f} ms"
    return [*rows, Row("CPU of a request", cpu_ms), Row("a heavy answer, p50", f"{p50(heavy_s):.2f} s, of {len(heavy_s)}")]


def _sample(world: World, generator: random.Random, count: int) -> list[str]:
    """Return random vehicles among those that have an entry in their queue."""
    return [world.vehicle(generator.randrange(world.vins * 99 // 100)) for _ in range(count)]


async def _load(url: str, vins: list[str]) -> list[float]:
    """Send a request for each vehicle, at `RATE` a second; return the latency of each in seconds, from the time it was due.

    Raises:
        RuntimeError: a response is an error, or is about another vehicle.
    """
    loop = asyncio.get_running_loop()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:
        began = loop.time()

        async def request(number: int, vin: str) -> float:
            due = began + number / RATE
            await asyncio.sleep(max(0.0, due - loop.time()))
            async with session.get(f"{url}/api/v1/vins/{vin}") as response:
                body = await response.json()
            if response.status != 200 or body["vin"] != vin or not body["entries"]:
                raise RuntimeError(f"{vin}: {response.status} {body}")
            return loop.time() - due

        async with asyncio.TaskGroup() as tasks:
            requests = [tasks.create_task(request(number, vin)) for number, vin in enumerate(vins)]
    return [task.result() for task in requests]


async def _load_beside_heavy(url: str, vins: list[str]) -> tuple[list[float], list[float]]:
    """Return the result of `_load`, and the seconds of each heavy request that was answered during that load."""
    heavy_s: list[float] = []

    async def send_heavy_requests() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(HEAVY_TIMEOUT_S)) as session:
            for vin in vins:
                for path in (f"batches/{SENT_TO_ALL}", f"vins/{vin}/history"):
                    began = time.perf_counter()
                    async with session.get(f"{url}/api/v1/{path}") as response:
                        await response.read()
                        response.raise_for_status()
                    heavy_s.append(time.perf_counter() - began)

    sending = asyncio.create_task(send_heavy_requests())
    latencies_s = await _load(url, vins)
    if sending.done():
        sending.result()  # raises the error, if one has ended the task
    sending.cancel()
    return latencies_s, heavy_s


def _by_pyiceberg(settings: Settings, vins: list[str]) -> list[float]:
    """Read the entries and outcomes of each vehicle in this process; return the seconds of each read, with the catalog open."""
    catalog = open_catalog(settings)
    durations_s = []
    for vin in vins:
        began = time.perf_counter()
        if not read_entries(catalog, vin):
            raise RuntimeError(f"the lake has nothing of {vin}")
        durations_s.append(time.perf_counter() - began)
    return durations_s
