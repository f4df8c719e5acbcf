"""RabbitMQ clients that use aio-pika: one only acknowledges signals, the other measures the latency of processed messages."""

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

PREFETCH = 50  # the same as the door's
RATE = 200.0  # signals a second while latency is measured
WARM_UP_SHARE = 0.1  # share of the signals, from the first one on, whose latency does not count
TIMEOUT_S = 600.0
CORRELATION = "x-correlation-id"


def acknowledging(url: str, count: int) -> AbstractContextManager[Connection]:
    """Run a consumer in another process; it sends its CPU seconds once `count` messages are acknowledged."""
    return in_a_process(_acknowledge, url, count)


def _acknowledge(pipe: Connection, url: str, count: int) -> None:
    """Acknowledge `count` signals, after sending None to `pipe` once the consumer is ready; then send the CPU seconds."""

    async def consume() -> None:
        done = asyncio.Event()
        acknowledged = 0
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            await channel.set_qos(prefetch_count=PREFETCH)

            async def take(message: Any) -> None:
                nonlocal acknowledged
                await message.ack()
                acknowledged += 1
                if acknowledged == count:
                    done.set()

            queue = await channel.get_queue(topology.RAW, ensure=True)
            await queue.consume(take)
            cpu_before_s = time.process_time()
            pipe.send(None)
            await done.wait()
            pipe.send(time.process_time() - cpu_before_s)
            await asyncio.to_thread(pipe.recv)  # blocks until the parent ends this process

    uvloop.run(consume())


def latencies_ms(url: str, secret: str, count: int) -> list[float]:
    """Return the milliseconds from each publish to its processed message, at `RATE` signals a second. A door must run."""
    latencies_s = asyncio.run(_latencies_s(url, list(signals(secret, count, seed=4))))
    warm_up = int(count * WARM_UP_SHARE)
    return [1000 * seconds for seconds in latencies_s[warm_up:]]


async def _latencies_s(url: str, messages: list[SignalMessage]) -> list[float]:
    """Return the seconds from publish to processed message for each message, in the order of publishing."""
    sent_at, arrived_at = dict[str, float](), dict[str, float]()  # by correlation id
    all_arrived = asyncio.Event()

    async def take(message: Any) -> None:
        arrived_at[message.headers[CORRELATION]] = time.monotonic()
        if len(arrived_at) == len(messages):
            all_arrived.set()

    async with await aio_pika.connect(url) as connection:
        reading, writing = await connection.channel(publisher_confirms=False), await connection.channel()
        await (await reading.get_queue(topology.PROCESSED)).consume(take, no_ack=True)
        exchange = await writing.get_exchange(topology.EXCHANGE)
        publishing = set[asyncio.Task[Any]]()
        began = time.monotonic()
        for number, message in enumerate(messages):
            await asyncio.sleep(began + number / RATE - time.monotonic())
            outgoing = aio_pika.Message(
                message.body,
                headers=dict[str, Any](message.headers),
                content_type="application/json",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            sent_at[message.correlation_id] = time.monotonic()
            publishing.add(asyncio.create_task(exchange.publish(outgoing, topology.RAW)))
        await asyncio.gather(*publishing)
        async with asyncio.timeout(TIMEOUT_S):
            await all_arrived.wait()
    return [arrived_at[correlation_id] - published_at for correlation_id, published_at in sent_at.items()]
