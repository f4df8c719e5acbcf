"""The same traffic by each library: every message is taken, published once more and confirmed, and acknowledged in groups.

Nothing is checked, kept or processed: what is left is what a library takes for a message. The door's way is the one that the
door has (`manifold.signals._session`): connections by aio-pika, messages by `manifold.signals._amqp_frames`.
"""

import asyncio
import time
from multiprocessing.connection import Connection
from typing import Any

import aio_pika
import aiormq
import uvloop
from pamqp.commands import Basic

from benchmarks.signals._ground import Ground
from benchmarks.signals._groups import PREFETCH, Groups, Started, Taken, about
from benchmarks.signals._load import load
from benchmarks.signals._pika import by_pika
from benchmarks.signals._process import in_a_process
from manifold.contracts.signals import topology
from manifold.settings import Settings
from manifold.signals._outgoing import Outgoing
from manifold.signals._session import open_session


async def by_door(url: str, count: int, started: Started) -> None:
    """As the door does it."""
    groups = Groups(count)
    async with open_session(url, Settings(signals_prefetch=PREFETCH)) as session:
        taken = dict[int, Any]()

        def take(received: Any) -> None:
            taken[received.tag] = received
            groups.take(received.body, received.headers, received.tag)

        async def publish(group: list[Taken]) -> None:
            out = [_processed(body, about(headers, tag)) for body, headers, tag in group]
            failed = [one for one in await session.publish(out) if one is not None]
            assert not failed, failed

        async def ack(tag: int) -> None:
            await session.ack_up_to(taken.pop(tag))

        await session.consume(topology.RAW, take)
        started()
        await groups.settle(publish, ack)


def _processed(body: bytes, said: dict[str, Any]) -> Outgoing:
    return Outgoing(topology.EXCHANGE, topology.PROCESSED, body, Basic.Properties(**said))


async def by_aio_pika(url: str, count: int, started: Started) -> None:
    """aio-pika: a task for each message that comes, a future for each that goes."""
    groups = Groups(count)
    async with await aio_pika.connect(url) as connection, await aio_pika.connect(url) as giving:
        channel, out = await connection.channel(publisher_confirms=False), await giving.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        exchange, taken = await out.get_exchange(topology.EXCHANGE), dict[int, Any]()

        async def take(message: Any) -> None:
            taken[message.delivery_tag] = message
            groups.take(message.body, message.headers, message.delivery_tag)

        async def publish(group: list[Taken]) -> None:
            made = [aio_pika.Message(body, **about(headers, tag)) for body, headers, tag in group]
            await asyncio.gather(*(exchange.publish(one, topology.PROCESSED) for one in made))

        async def ack(tag: int) -> None:
            await taken.pop(tag).ack(multiple=True)

        await (await channel.get_queue(topology.RAW, ensure=True)).consume(take)
        started()
        await groups.settle(publish, ack)


async def by_aiormq(url: str, count: int, started: Started) -> None:
    """What is under aio-pika."""
    groups = Groups(count)
    async with aiormq.Connection(url) as connection, aiormq.Connection(url) as giving:
        channel, out = await connection.channel(publisher_confirms=False), await giving.channel()
        await channel.basic_qos(prefetch_count=PREFETCH)

        async def take(message: Any) -> None:
            groups.take(message.body, message.header.properties.headers, message.delivery.delivery_tag)

        async def publish(group: list[Taken]) -> None:
            await asyncio.gather(
                *(
                    out.basic_publish(
                        body,
                        exchange=topology.EXCHANGE,
                        routing_key=topology.PROCESSED,
                        properties=Basic.Properties(**about(headers, tag)),
                        mandatory=True,
                    )
                    for body, headers, tag in group
                )
            )

        async def ack(tag: int) -> None:
            await channel.basic_ack(tag, multiple=True, wait=False)

        await channel.basic_consume(topology.RAW, take)
        started()
        await groups.settle(publish, ack)


DOORS_WAY = "the door's way"
LIBRARIES = {DOORS_WAY: by_door, "aio-pika": by_aio_pika, "aiormq": by_aiormq, "pika": by_pika}


def cost_us(ground: Ground, library: str, count: int, *, seed: int) -> float:
    """Microseconds of CPU that a process which does only that takes for a message of 1 KB."""
    ground.purge()
    with (
        in_a_process(_main, ground.url, library, count) as client,
        load(ground.url, ground.secret, count, seed=seed) as publisher,
    ):
        publisher.send(None)
        took_s: float = client.recv()
        publisher.recv()
        return took_s * 1e6 / count


def _main(pipe: Connection, url: str, library: str, count: int) -> None:
    began = 0.0

    def started() -> None:
        nonlocal began
        began = time.process_time()
        pipe.send(None)

    async def work() -> None:
        await LIBRARIES[library](url, count, started)
        pipe.send(time.process_time() - began)

    uvloop.run(work())
