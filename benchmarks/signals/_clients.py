"""The same traffic by each library: every message is taken, published once more and confirmed, and acknowledged in groups.

Nothing is checked, kept or processed: what is left is what a library takes for a message. The door's way is the one that the
door has (`signals._session`): connections by aio-pika, messages by `signals._wire`.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import Any

import aio_pika
import aiormq
import pika
import uvloop
from pamqp.commands import Basic
from pika.adapters.asyncio_connection import AsyncioConnection

from benchmarks.signals._ground import Ground
from benchmarks.signals._load import load
from contracts.settings import Settings
from contracts.signals import topology
from signals._outgoing import Outgoing
from signals._session import open_session

PREFETCH, GROUP = 50, 25  # as the door has
JSON, PERSISTENT = "application/json", 2
SENT_ON = ("x-correlation-id", "x-nonce", "x-timestamp-auth")  # as many headers as a processed signal has
Taken = tuple[bytes, Any, int]  # body, headers, delivery tag
Publish = Callable[[list[Taken]], Awaitable[None]]  # each confirmed
Ack = Callable[[int], Awaitable[None]]  # this one, and all before it
Started = Callable[[], None]


class Groups:
    """Messages as they come, and as they are settled: at most `GROUP` together, and one group after the other."""

    def __init__(self, count: int) -> None:
        self._left, self._came, self._waiting = count, asyncio.Event(), list[Taken]()

    def take(self, body: bytes, headers: Any, tag: int) -> None:
        """One has come."""
        self._waiting.append((body, headers, tag))
        self._came.set()

    async def settle(self, publish: Publish, ack: Ack) -> None:
        """Return when all are acknowledged."""
        while self._left:
            await self._came.wait()
            group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
            if not self._waiting:
                self._came.clear()
            await publish(group)
            await ack(group[-1][2])
            self._left -= len(group)


def _about(headers: Any, message_id: int) -> dict[str, Any]:
    """Properties as a processed signal has them."""
    kept = {name: headers[name] for name in SENT_ON}
    about = {"content_type": JSON, "headers": kept, "delivery_mode": PERSISTENT, "message_id": f"{message_id:064x}"}
    return about | {"timestamp": datetime.now(UTC)}


async def by_door(url: str, count: int, started: Started) -> None:
    """As the door does it."""
    groups = Groups(count)
    async with open_session(url, Settings(signals_prefetch=PREFETCH)) as session:
        taken = dict[int, Any]()

        def take(received: Any) -> None:
            taken[received.tag] = received
            groups.take(received.body, received.headers, received.tag)

        async def publish(group: list[Taken]) -> None:
            out = [_processed(body, _about(headers, tag)) for body, headers, tag in group]
            failed = [one for one in await session.publish(out) if one is not None]
            assert not failed, failed

        async def ack(tag: int) -> None:
            await session.ack_up_to(taken.pop(tag))

        await session.consume(topology.RAW, take)
        started()
        await groups.settle(publish, ack)


def _processed(body: bytes, about: dict[str, Any]) -> Outgoing:
    return Outgoing(topology.EXCHANGE, topology.PROCESSED, body, Basic.Properties(**about))


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
            made = [aio_pika.Message(body, **_about(headers, tag)) for body, headers, tag in group]
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
                        properties=Basic.Properties(**_about(headers, tag)),
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


class _Pika:
    """A channel of pika's on a connection of its own, which calls back."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = self._loop.create_future()
        self.connection = AsyncioConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._open.set_result),
            on_open_error_callback=lambda _, exc: self._open.set_exception(exc),
        )

    async def channel(self) -> Any:
        """The channel, as soon as it is open."""
        return await self._open

    async def called(self, method: Callable[..., Any], **options: Any) -> None:
        """Return when the server has answered."""
        answered = self._loop.create_future()
        method(callback=answered.set_result, **options)
        await answered


async def by_pika(url: str, count: int, started: Started) -> None:
    """pika: no task and no future for a message; its own sockets on the loop."""
    groups, taking, giving = Groups(count), _Pika(url), _Pika(url)
    channel, out = await taking.channel(), await giving.channel()
    await taking.called(channel.basic_qos, prefetch_count=PREFETCH)
    unconfirmed, confirmed, published = set[int](), asyncio.Event(), 0

    def settled(frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            unconfirmed.difference_update([one for one in unconfirmed if one <= tag])
        else:
            unconfirmed.discard(tag)
        if not unconfirmed:
            confirmed.set()

    async def publish(group: list[Taken]) -> None:
        nonlocal published
        confirmed.clear()
        for body, headers, tag in group:
            published += 1
            unconfirmed.add(published)
            about = _about(headers, tag)
            about["timestamp"] = int(about["timestamp"].timestamp())
            out.basic_publish(topology.EXCHANGE, topology.PROCESSED, body, pika.BasicProperties(**about), mandatory=True)
        await confirmed.wait()

    async def ack(tag: int) -> None:
        channel.basic_ack(tag, multiple=True)

    answered = asyncio.get_running_loop().create_future()
    out.confirm_delivery(settled, callback=answered.set_result)
    await answered
    channel.basic_consume(topology.RAW, lambda _, method, about, body: groups.take(body, about.headers, method.delivery_tag))
    started()
    await groups.settle(publish, ack)


LIBRARIES = {"the door's way": by_door, "aio-pika": by_aio_pika, "aiormq": by_aiormq, "pika": by_pika}


def cost_us(ground: Ground, library: str, count: int, *, seed: int) -> float:
    """Microseconds of CPU that a process which does only that takes for a message of 1 KB."""
    ground.purge()
    with _client(ground.url, library, count) as client, load(ground.url, ground.secret, count, seed=seed) as publisher:
        publisher.send(None)
        took_s: float = client.recv()
        publisher.recv()
        return took_s * 1e6 / count


@contextmanager
def _client(url: str, library: str, count: int) -> Iterator[Connection]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_main, args=(there, url, library, count), daemon=True)
    process.start()
    there.close()  # so that a client that fails is noticed
    here.recv()
    try:
        yield here
    finally:
        process.kill()
        process.join()


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
