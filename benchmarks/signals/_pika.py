"""The same traffic by pika: no task and no future for a message; its own sockets on the loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from benchmarks.signals._groups import PREFETCH, Groups, Started, Taken, about
from manifold.contracts.signals import topology


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
            said = about(headers, tag)
            said["timestamp"] = int(said["timestamp"].timestamp())
            out.basic_publish(topology.EXCHANGE, topology.PROCESSED, body, pika.BasicProperties(**said), mandatory=True)
        await confirmed.wait()

    async def ack(tag: int) -> None:
        channel.basic_ack(tag, multiple=True)

    answered = asyncio.get_running_loop().create_future()
    out.confirm_delivery(settled, callback=answered.set_result)
    await answered
    channel.basic_consume(topology.RAW, lambda _, method, said, body: groups.take(body, said.headers, method.delivery_tag))
    started()
    await groups.settle(publish, ack)
