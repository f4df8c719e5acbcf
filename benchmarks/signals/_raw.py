"""The raw limit: a client of the door's own library that takes the same messages, and does nothing but acknowledge them."""

import asyncio
import time
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

import aio_pika
import uvloop

from benchmarks.signals._process import in_a_process
from manifold.contracts.signals import topology

PREFETCH = 50  # as the door has


def consumer(url: str, count: int) -> AbstractContextManager[Connection]:
    """Consumes when this begins; says the CPU seconds that it took once `count` messages are acknowledged."""
    return in_a_process(_main, url, count)


def _main(pipe: Connection, url: str, count: int) -> None:
    async def consume() -> None:
        done, taken = asyncio.Event(), 0
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            await channel.set_qos(prefetch_count=PREFETCH)

            async def take(message: Any) -> None:
                nonlocal taken
                await message.ack()
                taken += 1
                if taken == count:
                    done.set()

            queue = await channel.get_queue(topology.RAW, ensure=True)
            await queue.consume(take)
            began = time.process_time()
            pipe.send(None)
            await done.wait()
            pipe.send(time.process_time() - began)
            await asyncio.to_thread(pipe.recv)  # to be ended

    uvloop.run(consume())
