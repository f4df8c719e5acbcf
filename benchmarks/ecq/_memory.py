"""What Redis pays for a live key, in bytes of its own count."""

import asyncio

from benchmarks.dispatch._ground import PAYLOAD, vin
from benchmarks.dispatch._memory import a_redis
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.queues import AsyncBatch, Policy, connect
from manifold.queues.verbs.ecq import Append
from manifold.settings import load_settings


def bytes_a_live_key(owners: int, each: int) -> float:
    """All told, of clients that are away, each with so many live keys; payloads of 200 bytes. A Redis of its own."""
    policy, seqs = Policy.of(load_settings()), SeqSource(902)

    async def fill(port: int, numbers: range) -> None:
        async with connect(f"redis://127.0.0.1:{port}") as client:
            for number in numbers:
                batch = AsyncBatch(client, policy)
                for key in range(each):
                    append = Append(seqs.next(), f"settings/key-{key:03}", PAYLOAD)
                    batch.add(ecq_queue(vin(number)), append, wall_clock_ms())
                await batch.run()

    with a_redis() as redis:
        port = redis.connection_pool.connection_kwargs["port"]
        asyncio.run(fill(port, range(owners, owners + 1)))  # loads the scripts, once for all
        before = redis.info("memory")["used_memory"]
        asyncio.run(fill(port, range(owners)))
        after = redis.info("memory")["used_memory"]
    return float(after - before) / (owners * each)
