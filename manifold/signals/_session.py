"""One session with RabbitMQ: two connections, asserted topology, consumers, confirmed publishes.

Publishing has its own connection: under a memory or disk alarm the server stops reading from publishing connections, but it must
still receive acknowledgements, because they free resources.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from aio_pika.connection import Connection, make_url
from aio_pika.exceptions import AMQPError, ChannelInvalidStateError
from pamqp.commands import Basic
from pamqp.frame import marshal

from manifold.settings import Settings
from manifold.signals._amqp_frames import FRAME_OVERHEAD_BYTES, Delivery, FrameStream
from manifold.signals._confirms import Confirms
from manifold.signals._decoding import read_any_properties
from manifold.signals._foreign_bindings import ForeignBindings
from manifold.signals._outgoing import Outgoing
from manifold.signals._received import Received
from manifold.signals._topology import assert_topology, repair_topology

# Errors that end a session; the consumer then opens another one.
SESSION_ERRORS = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError)


class PublishRejectedError(AMQPError):
    """RabbitMQ nacked a message because its queue is full."""


LARGE_FRAME = 128 << 10  # bytes; used if the server sets no frame limit


class Session:
    """A session. Once `lost` is done, nothing can be acknowledged any more, and RabbitMQ redelivers the rest."""

    def __init__(self, consume_channel: Any, publish_channel: Any, wire_in: FrameStream, wire_out: FrameStream) -> None:
        self._consume_channel, self._publish_channel = consume_channel, publish_channel
        self._wire_in, self._wire = wire_in, wire_out
        self._queues: dict[str, tuple[ForeignBindings, Callable[[Received], None]]] = {}  # by consumer tag
        self._numbers = itertools.count()  # for consumer tags
        self._confirms = Confirms()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waited_s: Callable[[str], float] = lambda _: 0.0  # how long a message from the queue may have waited
        self.repair: Callable[[], Awaitable[None]]  # declares missing topology
        wire_in.delivered, wire_in.channel = self._delivered, int(consume_channel.number)
        wire_out.confirmed = lambda tag, multiple, taken: self._confirms.settled(tag, multiple=multiple, taken=taken)
        wire_out.channel = int(publish_channel.number)
        wire_out.returned, wire_out.ended = self._confirms.returned, self._confirms.ended
        # If a queue is deleted and recreated between two checks, only the consumer cancel notification shows it.
        consume_channel.on_consumer_cancel_callbacks.add(
            lambda _: self.end("RabbitMQ has cancelled a consumer, as when its queue is deleted")
        )
        for closing in (consume_channel.closing, publish_channel.closing):
            closing.add_done_callback(lambda done: self.end(_why(done)))
        # If only the consuming channel ended, pending publishes are still confirmed; redelivered messages become duplicates.
        publish_channel.closing.add_done_callback(lambda done: self._confirms.ended(_why(done)))

    async def consume(self, queue: str, take: Callable[[Received], None]) -> None:
        """Deliver the messages of the queue to `take` from now on."""
        await self._consume(ForeignBindings(queue), take)

    async def replace_consumer(self, consumer: str) -> None:
        """Replace a consumer by a new one on the same queue, with a fresh prefetch window.

        Messages delivered to the old consumer can still be acknowledged.
        """
        if consumer in self._queues:
            with cancellation_as_error():
                await self._consume_channel.basic_cancel(consumer)
            await self._consume(*self._queues.pop(consumer))

    async def stop_consuming(self) -> None:
        """Cancel all consumers; delivered messages can still be acknowledged."""
        with cancellation_as_error():
            for consumer in list(self._queues):
                await self._consume_channel.basic_cancel(consumer)

    async def ack_up_to(self, received: Received) -> None:
        """Acknowledge this message and all delivered before it."""
        _write(self._consume_channel, self._wire_in, [marshal(Basic.Ack(received.tag, multiple=True), self._wire_in.channel)])

    async def ack_each(self, messages: Sequence[Received]) -> None:
        """Acknowledge exactly these messages."""
        channel = self._wire_in.channel
        _write(self._consume_channel, self._wire_in, [marshal(Basic.Ack(received.tag), channel) for received in messages])

    async def publish(self, out: Sequence[Outgoing]) -> list[Exception | None]:
        """Publish; return for each message None if confirmed, else the error. Waits for the confirms without a timeout.

        A full queue yields `PublishRejectedError`.

        Raises:
            AMQPError: a message was returned as unroutable.
            OSError: the connection is lost.
        """
        failed = self._written(out)
        count = failed.count(None)
        taken = iter(await self._confirms.all_of(count) if count else ())
        return [why if why is not None or next(taken) else PublishRejectedError("rejected") for why in failed]

    def pause(self) -> None:
        """Stop reading, and so receiving, until `resume`; acknowledgements are still sent."""
        self._wire_in.pause()

    def resume(self) -> None:
        """Resume reading."""
        self._wire_in.resume()

    def leave(self) -> None:
        """Ignore further deliveries, which RabbitMQ redelivers; keep reading, to reach the end of the connection."""
        self._queues.clear()
        self._wire_in.resume()

    async def is_blocked(self) -> bool:
        """Whether the server has blocked the publishing connection, because of a memory or disk alarm."""
        ready = asyncio.ensure_future(self._publish_channel.connection.ready())
        await asyncio.sleep(0)
        if ready.done():
            return False
        ready.cancel()
        return True

    async def count(self, queue: str) -> int:
        """Return the number of messages waiting in the queue."""
        with cancellation_as_error():
            return int((await self._consume_channel.queue_declare(queue, passive=True)).message_count)

    async def repair_topology(self) -> None:
        """Declare and bind again whatever was deleted."""
        with cancellation_as_error():
            await self.repair()

    def end(self, why: str) -> None:
        """Mark the session as ended."""
        if not self.lost.done():
            self.lost.set_result(why)

    def _written(self, out: Sequence[Outgoing]) -> list[Exception | None]:
        """Write the messages; return for each None, or the error if it cannot be encoded."""
        room = int(self._publish_channel.connection.connection_tune.frame_max or LARGE_FRAME) - FRAME_OVERHEAD_BYTES
        packed = [one.packed(self._wire.channel, room=room) for one in out]
        _write(self._publish_channel, self._wire, [frame for one in packed if not isinstance(one, Exception) for frame in one])
        return [one if isinstance(one, Exception) else None for one in packed]

    async def _consume(self, ways: ForeignBindings, take: Callable[[Received], None]) -> None:
        consumer = f"door-{next(self._numbers)}"
        self._queues[consumer] = ways, take
        with cancellation_as_error():
            await self._consume_channel.basic_consume(ways.queue, _ignore_delivery, consumer_tag=consumer)

    def _delivered(self, found: Sequence[Delivery]) -> None:
        now = datetime.now(UTC)
        for one in found:
            by = one.by
            if (consumer := self._queues.get(by.consumer_tag)) is not None:
                ways, take = consumer
                if ways.is_own(by.exchange, by.routing_key) or ways.count_message(by.exchange, by.routing_key):
                    take(_received(ways.queue, one, now, self.waited_s(ways.queue)))
                else:
                    self._wire_in.write([marshal(Basic.Ack(by.delivery_tag), self._wire_in.channel)])


@asynccontextmanager
async def open_session(url: str, settings: Settings) -> AsyncIterator[Session]:
    """Open a session with asserted topology; a context manager.

    Raises:
        Permanent: an exchange or queue exists with other arguments.
        AMQPError, OSError, TimeoutError: RabbitMQ is unavailable or refuses; the text contains no password.
    """
    within_s, to = settings.signals_connect_ms / 1000, make_url(url, heartbeat=settings.signals_heartbeat_seconds)
    read_any_properties()
    async with contextlib.AsyncExitStack() as stack:
        wires = {way: FrameStream() for way in ("in", "out")}
        with cancellation_as_error():
            of_in, of_out = [await _connected(stack, to, f"manifold signals {way}", wires[way], within_s) for way in wires]
            await assert_topology(of_in, partitions=settings.signals_partitions)
            consume_channel = await (await of_in.channel(publisher_confirms=False)).get_underlay_channel()
            publish_channel = await (await of_out.channel(publisher_confirms=True)).get_underlay_channel()
            await consume_channel.basic_qos(prefetch_count=settings.signals_prefetch)
        session = Session(consume_channel, publish_channel, wires["in"], wires["out"])
        session.repair = lambda: repair_topology(of_in, partitions=settings.signals_partitions)
        yield session


@contextlib.contextmanager
def cancellation_as_error() -> Iterator[None]:
    """Turn aiormq's cancellation of pending calls on a closed connection into an error.

    Raises:
        ConnectionError: instead of a cancellation that was not requested for this task.
    """
    try:
        yield
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionError("the connection has ended") from exc


async def _connected(stack: contextlib.AsyncExitStack, to: Any, name: str, wire: FrameStream, within_s: float) -> Connection:
    connection = Connection(to, client_properties={"connection_name": name})
    connection.kwargs["transport_factory"] = wire
    await connection.connect(timeout=within_s)
    stack.push_async_callback(_close, connection)
    return connection


async def _close(connection: Connection) -> None:
    with contextlib.suppress(*SESSION_ERRORS), cancellation_as_error():
        async with asyncio.timeout(5):
            await connection.close()


def _write(channel: Any, wire: FrameStream, frames: Sequence[bytes]) -> None:
    """Write frames.

    Raises:
        ConnectionError: the channel or its connection is closed.
    """
    if channel.is_closed:
        raise ConnectionError("the channel was closed")
    wire.write(frames)


def _why(done: "asyncio.Future[Any]") -> str:
    if done.cancelled():
        return "the channel was closed"
    error = done.exception()
    return f"the channel was closed: {error}" if error else "the channel was closed"


async def _ignore_delivery(_: Any) -> None:
    """Do nothing: deliveries bypass the library's consumer callback."""


def _received(queue: str, message: Delivery, at: datetime, waited_s: float) -> Received:
    properties = message.properties
    return Received(
        queue=queue,
        body=message.body,
        headers=properties.headers or {},
        at=at,
        waited_s=waited_s,
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        reply_to=properties.reply_to,
        correlation_property=properties.correlation_id,
        tag=message.by.delivery_tag,
        redelivered=message.by.redelivered,
        consumer=message.by.consumer_tag,
        properties=properties,
    )
