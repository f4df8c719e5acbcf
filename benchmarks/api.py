"""Latency of the API for a vehicle's queue under load, at a million vehicles; and PyIceberg alone for the same vehicle.

`python -m benchmarks.api [--vins 1000000] [--rate 200] [--seconds 30]`; `benchmarks.million` says what is there. Requests begin
at fixed times, whether or not earlier ones were answered, and each counts from the time at which it should have begun. The same
once more while somebody asks heavy questions one after the other: a whole batch, and what was sent to a vehicle.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp
import psutil

from benchmarks.machine import Row, free_ports, report
from benchmarks.million import World, fill
from manifold.history.from_lake import read_entries
from manifold.lake.catalog import open_catalog
from manifold.runtime.log import configure_logging
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings, load_settings
from tests.support.servers import answers, start_python, start_redis, stopping

VINS, RATE, SECONDS = 1_000_000, 200, 30.0
READS, WARM_UP_S = 30, 3.0
CONNECTIONS = 32
HEAVY_S = 120  # that a heavy question may take
SENT_TO_ALL = "autumn"  # the batch of `benchmarks.million` that waits for 99 of 100 vehicles


async def load(url: str, vins: list[str], rate: int) -> list[float]:
    """Seconds of each request of `/vins/{vin}`, from the time at which it should have begun.

    Raises:
        RuntimeError: one was not answered with that vehicle.
    """
    loop = asyncio.get_running_loop()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:
        began = loop.time()

        async def one(n: int, vin: str) -> float:
            due = began + n / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            async with session.get(f"{url}/api/v1/vins/{vin}") as answer:
                said = await answer.json()
            if answer.status != 200 or said["vin"] != vin or not said["entries"]:
                raise RuntimeError(f"{vin}: {answer.status} {said}")
            return loop.time() - due

        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(one(n, vin)) for n, vin in enumerate(vins)]
    return [each.result() for each in asked]


async def load_beside(url: str, vins: list[str], rate: int) -> tuple[list[float], list[float]]:
    """The seconds of `load`, and those of each heavy question that was answered meanwhile."""
    heavy: list[float] = []

    async def ask_heavy() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(HEAVY_S)) as session:
            for vin in vins:
                for path in (f"batches/{SENT_TO_ALL}", f"vins/{vin}/history"):
                    began = time.perf_counter()
                    async with session.get(f"{url}/api/v1/{path}") as answer:
                        await answer.read()
                        answer.raise_for_status()
                    heavy.append(time.perf_counter() - began)

    asking = asyncio.create_task(ask_heavy())
    took = await load(url, vins, rate)
    if asking.done():
        asking.result()  # or it has failed
    asking.cancel()
    return took, heavy


def by_pyiceberg(settings: Settings, vins: list[str]) -> list[float]:
    """Seconds of each read of a vehicle's entries and their ends, in this process, with the catalog open."""
    catalog, took = open_catalog(settings), []
    for vin in vins:
        began = time.perf_counter()
        if not read_entries(catalog, vin):
            raise RuntimeError(f"the lake has nothing of {vin}")
        took.append(time.perf_counter() - began)
    return took


def _p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100, method="inclusive")[98]


def measure(settings: Settings, world: World, rate: int, seconds: float) -> list[Row]:
    """Ask the API, then read the lake."""
    draw = random.Random(1)
    number = round(rate * seconds)
    queued = world.vins * 99 // 100  # of these vehicles something waits

    def some(count: int) -> list[str]:
        return [world.vehicle(draw.randrange(queued)) for _ in range(count)]

    log, url = settings.home / "api.log", f"{settings.api}/healthz"
    server = start_python("manifold.api", port=settings.api_port, log=log, env=environment(settings), ready=lambda: answers(url))
    with stopping(server):
        api = psutil.Process(server.pid)
        asyncio.run(load(settings.api, some(round(rate * WARM_UP_S)), rate))
        before = sum(api.cpu_times()[:2])
        took = asyncio.run(load(settings.api, some(number), rate))
        cpu_s = sum(api.cpu_times()[:2]) - before
        beside, heavy = asyncio.run(load_beside(settings.api, some(number), rate))
    by_pyiceberg(settings, some(3))
    read = by_pyiceberg(settings, some(READS))
    served = Row(
        f"vins/{{vin}}, {rate} requests/s: p99",
        f"{_p99(took) * 1000:.1f} ms",
        f"p50 {statistics.median(took) * 1000:.1f} ms",
        cpu=f"{cpu_s / number * 1000:.1f} ms of CPU a request",
    )
    crowded = Row(
        "the same while a batch of all and a vehicle's history are asked for again and again: p99",
        f"{_p99(beside) * 1000:.1f} ms",
        f"p50 {statistics.median(beside) * 1000:.1f} ms; {len(heavy)} heavy answers, p50 {statistics.median(heavy):.2f} s",
    )
    alone = Row(
        f"the same vehicle by PyIceberg alone, {READS} reads: p99",
        f"{_p99(read) * 1000:.0f} ms",
        f"p50 {statistics.median(read) * 1000:.0f} ms",
    )
    return [served, crowded, alone]


def run(vins: int = VINS, rate: int = RATE, seconds: float = SECONDS) -> list[Row]:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="manifold-bench-") as folder:
        settings = load_settings(home=Path(folder), with_airflow=False, with_signals=False, **free_ports())
        redis = start_redis(settings.home / "redis", port=settings.redis_port)
        with stopping(redis):
            return measure(settings, fill(settings, vins), rate, seconds)


def setting(vins: int) -> str:
    """What there is."""
    return f"{vins:,} vehicles in Redis and in the lake; the client is on the same machine"


if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vins", type=int, default=VINS)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    asked = parser.parse_args()
    report("api", setting(asked.vins), run(asked.vins, asked.rate, asked.seconds))
