"""From publishing a signal to having its processed message, at a rate that the door has no trouble with."""

import asyncio
import time
from typing import Any

import aio_pika

from benchmarks.signals._ground import WITHIN_S, Ground
from benchmarks.signals._load import signals
from manifold.contracts.signals import topology
from manifold.sandbox.fleet.gateways import SignalMessage

RATE = 200.0  # a second
WARM_UP = 0.1  # of the messages, which are not counted
CORRELATION = "x-correlation-id"


def latencies_ms(ground: Ground, count: int, *, seed: int) -> list[float]:
    """From before the publish to the delivery of the processed message: one door, and a client that publishes evenly."""
    with ground.doors(1):
        made = list(signals(ground.secret, count, seed=seed))
        took = asyncio.run(_took(ground.url, made))
    return [1000 * seconds for seconds in took[int(count * WARM_UP) :]]


async def _took(url: str, made: list[SignalMessage]) -> list[float]:
    """Seconds for each, in the order of publishing."""
    sent, came, all_there = dict[str, float](), dict[str, float](), asyncio.Event()

    async def take(message: Any) -> None:
        came[message.headers[CORRELATION]] = time.monotonic()
        if len(came) == len(made):
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
    return [came[correlation_id] - at for correlation_id, at in sent.items()]
