"""Memory of Redis for an entry and for an owner, in bytes by its own count."""

import asyncio
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from benchmarks.dispatch._ground import vin
from benchmarks.machine import free_ports
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.queues import AsyncBatch, Loader, Policy, connect
from manifold.queues.verbs.claims import UpdatePresence
from manifold.settings import load_settings

MANY = 100  # entries of one owner
A_FLUSH = 1000


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of Redis."""

    idle_owner: float  # nothing pending, its presence known
    single_entry: float  # an owner with one entry, its presence not known
    many_entries: float  # an entry of an owner that has a hundred


def measure(owners: int) -> Memory:
    """A Redis of its own, filled three times."""
    policy = Policy.of(load_settings())
    with a_redis() as redis:
        single = _grown(redis, lambda: _load(redis, policy, map(vin, range(owners)), 1)) / owners
        redis.flushall()
        few = max(1, owners // MANY)
        many = _grown(redis, lambda: _load(redis, policy, map(vin, range(few)), MANY)) / (few * MANY)
        redis.flushall()
        idle = _grown(redis, lambda: _greet(redis, policy, owners)) / owners
    return Memory(idle, single, many)


def _grown(redis: Redis, fill: Callable[[], None]) -> float:
    before = _used(redis)
    fill()
    return _used(redis) - before


def _used(redis: Redis) -> int:
    info: dict[str, int] = redis.info("memory")
    return info["used_memory"]


def _load(redis: Redis, policy: Policy, owners: Iterable[str], each: int) -> None:
    source = SeqSource(901)
    entries = [(source.next(), "bench") for _ in range(each)]
    Loader(redis, policy).enqueue(((owner, entries) for owner in owners), wall_clock_ms())


def _greet(redis: Redis, policy: Policy, owners: int) -> None:
    async def greet() -> None:
        port, now_ms = redis.connection_pool.connection_kwargs["port"], wall_clock_ms()
        async with connect(f"redis://127.0.0.1:{port}") as client:
            for first in range(0, owners, A_FLUSH):
                batch = AsyncBatch(client, policy)
                for number in range(first, min(owners, first + A_FLUSH)):
                    batch.add(vin(number), UpdatePresence(Connected(Owner(vin(number)), now_ms, True, 3600), False), now_ms)
                await batch.run()

    asyncio.run(greet())


@contextmanager
def a_redis() -> Iterator[Redis]:
    """An empty one, which keeps nothing on disk."""
    port = free_ports()["redis_port"]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with Redis(port=port) as redis:
            patient = Retrying(
                retry=retry_if_exception_type(RedisConnectionError), wait=wait_fixed(0.05), stop=stop_after_delay(20)
            )
            patient(redis.ping)
            yield redis
    finally:
        process.terminate()
        process.wait()
