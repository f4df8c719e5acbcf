"""Clients of RabbitMQ by aio-pika: one that only acknowledges signals, and one that times their processed messages."""

import asyncio
import time
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

import aio_pika
import uvloop

from benchmarks._amqp_load import signals
from benchmarks._servers import in_a_process
from manifold.contracts.signals import topology
from manifold.sandbox.fleet.gateways import SignalMessage

PREFETCH = 50  # as the door's
RATE = 200.0  # signals a second whose latency is measured
WARM_UP = 0.1  # share of them that does not count
WITHIN_S = 600.0
CORRELATION = "x-correlation-id"


def acknowledging(url: str, count: int) -> AbstractContextManager[Connection]:
    """Run a consumer in another process; it sends its CPU seconds once `count` messages are acknowledged."""
    return in_a_process(_acknowledge, url, count)


def _acknowledge(pipe: Connection, url: str, count: int) -> None:
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
            await asyncio.to_thread(pipe.recv)  # until this process is ended

    uvloop.run(consume())


def latencies_ms(url: str, secret: str, count: int) -> list[float]:
    """Milliseconds from each publish to its processed message, at `RATE` signals a second; a door must run."""
    took = asyncio.run(_took(url, list(signals(secret, count, seed=4))))
    return [1000 * seconds for seconds in took[int(count * WARM_UP) :]]


async def _took(url: str, made: list[SignalMessage]) -> list[float]:
    """Seconds for each, in the order of publishing."""
    sent, arrived, all_there = dict[str, float](), dict[str, float](), asyncio.Event()

    async def take(message: Any) -> None:
        arrived[message.headers[CORRELATION]] = time.monotonic()
        if len(arrived) == len(made):
            all_there.set()

    async with await aio_pika.connect(url) as connection:
        reading, writing = await connection.channel(publisher_confirms=False), await connection.channel()
        await (await reading.get_queue(topology.PROCESSED)).consume(take, no_ack=True)
        exchange = await writing.get_exchange(topology.EXCHANGE)
        began, publishing = time.monotonic(), set[asyncio.Task[Any]]()
        for number, message in enumerate(made):
            await asyncio.sleep(began + number / RATE - time.monotonic())
            packed = aio_pika.Message(
                message.body,
                headers=dict[str, Any](message.headers),
                content_type="application/json",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            sent[message.correlation_id] = time.monotonic()
            publishing.add(asyncio.create_task(exchange.publish(packed, topology.RAW)))
        await asyncio.gather(*publishing)
        async with asyncio.timeout(WITHIN_S):
            await all_there.wait()
    return [arrived[correlation_id] - at for correlation_id, at in sent.items()]
