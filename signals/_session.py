"""One stay at RabbitMQ: two connections, the topology asserted, queues consumed, messages published and confirmed.

What is published has a connection of its own: a server that is short of memory or disk stops reading from connections that
publish, and acknowledgements have to get through then, because they make room.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelInvalidStateError

from contracts.settings import Settings
from signals._decoding import read_any_properties
from signals._received import Received
from signals._topology import assert_topology
from signals._ways import Ways

Properties = Any  # of the library that aio-pika stands on

# All that a stay at RabbitMQ may end with; then another one begins.
AWAY = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError)


class Session:
    """A stay. `lost` is done when it has ended: then nothing of it can be acknowledged, and RabbitMQ delivers it again."""

    def __init__(self, taking: Any, giving: Any, *, connection: Any) -> None:
        self._taking, self._giving, self._connection = taking, giving, connection
        self._tags: list[str] = []
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waited_s: Callable[[str], float] = lambda _: 0.0  # how long what comes from a queue may have waited

    async def consume(self, queue: str, take: Callable[[Received], None]) -> None:
        """`take` gets each message of the queue from now on."""
        ways = Ways(queue)

        async def delivered(message: Any) -> None:
            way = message.delivery.exchange, message.delivery.routing_key
            if ways.is_own(*way) or ways.came(*way):
                take(_received(queue, message, self.waited_s(queue)))
            else:
                await self._taking.basic_ack(message.delivery_tag, wait=False)

        with ending_is_away():
            answer = await self._taking.basic_consume(queue, delivered)
        self._tags.append(str(answer.consumer_tag))

    async def stop_consuming(self) -> None:
        """Nothing more is delivered; what was can still be acknowledged."""
        tags, self._tags = self._tags, []
        with ending_is_away():
            for tag in tags:
                await self._taking.basic_cancel(tag)

    async def ack_up_to(self, received: Received) -> None:
        """This message, and every one that was delivered before it, is settled."""
        with ending_is_away():
            await self._taking.basic_ack(received.tag, multiple=True, wait=False)

    async def publish(self, exchange: str, key: str, body: bytes, properties: Properties, *, mandatory: bool = True) -> None:
        """Return when the server has the message, however long that takes.

        Raises:
            AMQPError: it has not, or no queue takes it.
            OSError: the connection is lost.
        """
        with ending_is_away():
            await self._giving.basic_publish(
                body, exchange=exchange, routing_key=key, properties=properties, mandatory=mandatory, wait=False
            )

    async def is_blocked(self) -> bool:
        """Whether the server has said that it takes nothing for now, because it is short of memory or disk."""
        ready = asyncio.ensure_future(self._connection.ready())
        await asyncio.sleep(0)
        if ready.done():
            return False
        ready.cancel()
        return True

    async def count(self, queue: str) -> int:
        """How many messages wait in the queue."""
        with ending_is_away():
            return int((await self._taking.queue_declare(queue, passive=True)).message_count)

    def end(self, why: str) -> None:
        """This stay is over."""
        if not self.lost.done():
            self.lost.set_result(why)


@asynccontextmanager
async def open_session(url: str, settings: Settings) -> AsyncIterator[Session]:
    """A stay, with the topology asserted, while the block runs.

    Raises:
        Permanent: an exchange or queue is there with other arguments.
        AMQPError, OSError, TimeoutError: RabbitMQ is away, or refuses; the text has no password.
    """
    options: dict[str, Any] = {"timeout": settings.signals_connect_ms / 1000, "heartbeat": settings.signals_heartbeat_seconds}
    read_any_properties()
    async with contextlib.AsyncExitStack() as stack:
        with ending_is_away():
            of_in, of_out = [await _connected(stack, url, f"manifold signals {way}", options) for way in ("in", "out")]
            await assert_topology(of_in, partitions=settings.signals_partitions)
            taking = await (await of_in.channel(publisher_confirms=False)).get_underlay_channel()
            giving = await (await of_out.channel(publisher_confirms=True, on_return_raises=True)).get_underlay_channel()
            await taking.basic_qos(prefetch_count=settings.signals_prefetch)
        session = Session(taking, giving, connection=giving.connection)
        for closing in (taking.closing, giving.closing):
            closing.add_done_callback(lambda done: session.end(_why(done)))
        yield session


@contextlib.contextmanager
def ending_is_away() -> Iterator[None]:
    """The library cancels whoever waits for a connection that ends. That is no reason for us to end: it is a server that is away.

    Raises:
        ConnectionError: instead of a cancellation that nobody has asked of this task.
    """
    try:
        yield
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionError("the connection has ended") from exc


async def _connected(stack: contextlib.AsyncExitStack, url: str, name: str, options: Mapping[str, Any]) -> AbstractConnection:
    connection: AbstractConnection = await aio_pika.connect(url, client_properties={"connection_name": name}, **options)
    stack.push_async_callback(_close, connection)
    return connection


async def _close(connection: AbstractConnection) -> None:
    with contextlib.suppress(*AWAY), ending_is_away():
        async with asyncio.timeout(5):
            await connection.close()


def _why(done: "asyncio.Future[Any]") -> str:
    if done.cancelled():
        return "the channel was closed"
    error = done.exception()
    return f"the channel was closed: {error}" if error else "the channel was closed"


def _received(queue: str, message: Any, waited_s: float) -> Received:
    properties = message.header.properties
    return Received(
        queue=queue,
        body=message.body,
        headers=properties.headers or {},
        at=datetime.now(UTC),
        waited_s=waited_s,
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        reply_to=properties.reply_to,
        correlation_property=properties.correlation_id,
        tag=message.delivery_tag,
        redelivered=bool(message.redelivered),
        properties=properties,
    )
