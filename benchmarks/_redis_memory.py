"""Memory that Redis uses for an entry, for an owner and for a compacted message, in bytes by its own count."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis

from benchmarks._ground import PAYLOAD, vin
from benchmarks._servers import PREFIX, start_redis
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.queues import AsyncBatch, Loader, Policy, connect
from manifold.queues.verbs.claims import UpdatePresence
from manifold.queues.verbs.ecq import Append
from manifold.settings import load_settings

MANY = 100  # entries of one owner
BATCH_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of Redis."""

    idle_owner: float  # its presence, with nothing pending
    single_entry: float  # an owner with one entry, without presence
    many_entries: float  # one entry of an owner that has a hundred


def measure(owners: int) -> Memory:
    """Fill an empty Redis three times."""
    policy = Policy.of(load_settings())
    with _empty_redis() as redis:
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
            for first in range(0, owners, BATCH_SIZE):
                batch = AsyncBatch(client, policy)
                for number in range(first, min(owners, first + BATCH_SIZE)):
                    batch.add(vin(number), UpdatePresence(Connected(Owner(vin(number)), now_ms, True, 3600), False), now_ms)
                await batch.run()

    asyncio.run(greet())


def bytes_a_live_key(owners: int, each: int) -> float:
    """Bytes for each message, if every one of `owners` offline clients has `each` live keys with payloads of 200 bytes."""
    policy, seqs = Policy.of(load_settings()), SeqSource(902)

    async def fill(port: int, numbers: range) -> None:
        async with connect(f"redis://127.0.0.1:{port}") as client:
            for number in numbers:
                batch = AsyncBatch(client, policy)
                for key in range(each):
                    append = Append(seqs.next(), f"settings/key-{key:03}", PAYLOAD)
                    batch.add(ecq_queue(vin(number)), append, wall_clock_ms())
                await batch.run()

    with _empty_redis() as redis:
        port = redis.connection_pool.connection_kwargs["port"]
        asyncio.run(fill(port, range(owners, owners + 1)))  # loads the scripts
        return _grown(redis, lambda: asyncio.run(fill(port, range(owners)))) / (owners * each)


@contextmanager
def _empty_redis() -> Iterator[Redis]:
    with TemporaryDirectory(prefix=PREFIX) as folder, start_redis(Path(folder)) as server, Redis(port=server.port) as redis:
        yield redis
