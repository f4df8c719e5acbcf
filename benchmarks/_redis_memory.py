"""Measures the memory that Redis uses for an entry, an owner and a compacted message, in bytes by its own count."""

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

MANY = 100  # entries of an owner with many entries
BATCH_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that Redis uses."""

    idle_owner: float  # an owner with presence and without entries
    single_entry: float  # an owner with one entry, without presence
    many_entries: float  # one entry of an owner with `MANY` entries


def measure(owners: int) -> Memory:
    """Fill an empty Redis three times, for each of the figures; `owners` is the number of owners."""
    policy = Policy.of(load_settings())
    with _empty_redis() as redis:
        single = _memory_growth(redis, lambda: _load(redis, policy, map(vin, range(owners)), 1)) / owners
        redis.flushall()
        busy_owners = max(1, owners // MANY)
        growth = _memory_growth(redis, lambda: _load(redis, policy, map(vin, range(busy_owners)), MANY))
        many = growth / (busy_owners * MANY)
        redis.flushall()
        idle = _memory_growth(redis, lambda: _connect_all(redis, policy, owners)) / owners
    return Memory(idle, single, many)


def _memory_growth(redis: Redis, fill: Callable[[], None]) -> float:
    before = _used_memory(redis)
    fill()
    return _used_memory(redis) - before


def _used_memory(redis: Redis) -> int:
    info: dict[str, int] = redis.info("memory")
    return info["used_memory"]


def _load(redis: Redis, policy: Policy, owners: Iterable[str], entries_each: int) -> None:
    source = SeqSource(901)
    entries = [(source.next(), "bench") for _ in range(entries_each)]
    Loader(redis, policy).enqueue(((owner, entries) for owner in owners), wall_clock_ms())


def _connect_all(redis: Redis, policy: Policy, owners: int) -> None:
    """Store the presence of owners that have connected."""

    async def connect_all() -> None:
        port = redis.connection_pool.connection_kwargs["port"]
        now_ms = wall_clock_ms()
        async with connect(f"redis://127.0.0.1:{port}") as client:
            for first in range(0, owners, BATCH_SIZE):
                batch = AsyncBatch(client, policy)
                for number in range(first, min(owners, first + BATCH_SIZE)):
                    connected = Connected(Owner(vin(number)), now_ms, clean_start=True, expiry_s=3600)
                    batch.add(vin(number), UpdatePresence(connected, claim=False), now_ms)
                await batch.run()

    asyncio.run(connect_all())


def bytes_a_live_key(owners: int, keys_each: int) -> float:
    """Return the bytes for each message if `owners` offline clients have `keys_each` live keys with payloads of 200 bytes."""
    policy = Policy.of(load_settings())
    seqs = SeqSource(902)

    async def fill(port: int, numbers: range) -> None:
        async with connect(f"redis://127.0.0.1:{port}") as client:
            for number in numbers:
                batch = AsyncBatch(client, policy)
                for key in range(keys_each):
                    append = Append(seqs.next(), f"settings/key-{key:03}", PAYLOAD)
                    batch.add(ecq_queue(vin(number)), append, wall_clock_ms())
                await batch.run()

    with _empty_redis() as redis:
        port = redis.connection_pool.connection_kwargs["port"]
        asyncio.run(fill(port, range(owners, owners + 1)))  # one more owner, so that Redis has loaded the scripts
        return _memory_growth(redis, lambda: asyncio.run(fill(port, range(owners)))) / (owners * keys_each)


@contextmanager
def _empty_redis() -> Iterator[Redis]:
    with TemporaryDirectory(prefix=PREFIX) as folder, start_redis(Path(folder)) as server, Redis(port=server.port) as redis:
        yield redis
