"""One session with RabbitMQ: two connections, asserted topology, consumers, confirmed publishes.

Publishing has its own connection: under a memory or disk alarm the server stops reading from publishing connections, but it must
still receive acknowledgements, because they free resources.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, DeliveryError
from aiormq import Channel
from aiormq.abc import DeliveredMessage

from manifold.settings import Settings
from manifold.signals._foreign_bindings import ForeignBindings, is_dead_letter_route
from manifold.signals._outgoing import MAX_PROPERTIES, Outgoing
from manifold.signals._received import Received
from manifold.signals._topology import assert_topology, repair_topology
from manifold.signals.compat import accept_any_properties

# Errors that end a session; the consumer then opens another one.
SESSION_ERRORS = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError)
FRAME_OVERHEAD = 64  # bytes of a frame that are not available for properties

OnReceived = Callable[[Received], None]


class PublishRejectedError(AMQPError):
    """RabbitMQ nacked a message because its queue is full."""


class Session:
    """A session.

    Once `lost` is done, nothing can be acknowledged any more, and RabbitMQ redelivers the unacknowledged messages.
    """

    def __init__(
        self, consuming: AbstractChannel, publishing: AbstractChannel, aiormq_consuming: Channel, aiormq_publishing: Channel
    ) -> None:
        self._consuming = consuming
        # The channels of aiormq below those of aio-pika.
        self._aiormq_consuming, self._aiormq_publishing = aiormq_consuming, aiormq_publishing
        self._consumers: dict[str, tuple[ForeignBindings, OnReceived]] = {}  # by consumer tag
        self._consumer_numbers = itertools.count()  # for consumer tags
        self._ignores_deliveries = False
        self._unroutable: str | None = None  # exchange and key of a message that RabbitMQ returned as unroutable
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.max_properties = MAX_PROPERTIES  # bytes of a message's properties; fewer if the server's frames are small
        # How many seconds a message that arrives now from the queue with this name may have waited there.
        self.max_wait_s: Callable[[str], float] = lambda _: 0.0
        # `open_session` sets both: `repair` declares missing topology; `ready` waits until the server reads what is published.
        self.repair: Callable[[], Awaitable[None]]
        self.ready: Callable[[], Awaitable[None]]
        for channel in (consuming, publishing):
            channel.close_callbacks.add(lambda _, why: self.end(_close_reason(why)))
        aiormq_publishing.on_return_callbacks.add(self._on_unroutable)

    async def consume(self, queue: str, on_received: OnReceived) -> None:
        """Call `on_received` for each message of the queue from now on."""
        await self._consume(ForeignBindings(queue), on_received)

    async def replace_consumer(self, consumer: str) -> None:
        """Replace a consumer by a new one on the same queue, with a fresh prefetch window.

        Messages delivered to the old consumer can still be acknowledged.
        """
        if consumer in self._consumers:
            bindings, on_received = self._consumers[consumer]
            await self._cancel(consumer)
            await self._consume(bindings, on_received)

    async def stop_consuming(self) -> None:
        """Cancel all consumers; delivered messages can still be acknowledged."""
        for consumer in list(self._consumers):
            await self._cancel(consumer)

    async def ack_up_to(self, received: Received) -> None:
        """Acknowledge this message and all messages delivered before it."""
        await _ack(received, multiple=True)

    async def ack_each(self, messages: Sequence[Received]) -> None:
        """Acknowledge exactly these messages."""
        for received in messages:
            await _ack(received)

    async def publish(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Publish in order and wait for the confirms; return for each message None if it is confirmed, else the error.

        There is no timeout. The error is `PublishRejectedError` for a full queue, and one of `SESSION_ERRORS` for a lost
        connection. Once RabbitMQ has returned an unroutable message, every message confirmed afterwards gets an `AMQPError`, too
        (see `_on_unroutable`).
        """
        return await asyncio.gather(*(self._publish_one(outgoing) for outgoing in messages))

    def ignore_deliveries(self) -> None:
        """Ignore further deliveries; RabbitMQ redelivers them in the next session."""
        self._ignores_deliveries = True

    async def is_blocked(self) -> bool:
        """Whether the server has blocked the publishing connection, because of a memory or disk alarm."""
        ready = asyncio.ensure_future(self.ready())
        await asyncio.sleep(0)  # lets `ready` run; unless the server blocks, it is done after this
        if ready.done():
            return False
        ready.cancel()
        return True

    async def count(self, queue: str) -> int:
        """Return the number of messages waiting in the queue."""
        with lost_connection_as_error():
            declared = await self._consuming.get_queue(queue, ensure=True)
        return int(declared.declaration_result.message_count or 0)

    async def repair_topology(self) -> None:
        """Declare and bind again the exchanges and queues that were deleted."""
        with lost_connection_as_error():
            await self.repair()

    def end(self, why: str) -> None:
        """Mark the session as ended, for the reason `why`. Later reasons are ignored."""
        if not self.lost.done():
            self.lost.set_result(why)

    async def _publish_one(self, outgoing: Outgoing) -> Exception | None:
        """Publish one message and wait for its confirm; return None if it is confirmed, else the error."""
        try:
            with lost_connection_as_error():
                # aio-pika's own `publish` would wait until each message is written before it accepts the next one.
                await self._aiormq_publishing.basic_publish(
                    outgoing.message.body,
                    exchange=outgoing.exchange,
                    routing_key=outgoing.key,
                    properties=outgoing.message.properties,
                    mandatory=outgoing.mandatory,
                    wait=False,
                )
        except DeliveryError:  # a nack
            return PublishRejectedError("rejected")
        except SESSION_ERRORS as exc:
            return exc
        if self._unroutable is not None:
            return AMQPError(f"RabbitMQ returned a message as unroutable: {self._unroutable}")
        return None

    def _on_unroutable(self, message: DeliveredMessage) -> None:
        """Remember that RabbitMQ returned an unroutable message, which it then confirms like any other.

        aiormq identifies the returned message by its message id only. Senders choose message ids, so another message that waits
        for its confirm may have the same id. That is why no message is trusted to be routed after this.
        """
        self._unroutable = f"{message.exchange} with key {message.routing_key}"

    async def _consume(self, bindings: ForeignBindings, on_received: OnReceived) -> None:
        """Consume the queue of `bindings`, and call `on_received` for each message.

        Dead letters that arrive by a foreign binding are only counted and acknowledged.
        """

        async def receive(delivery: DeliveredMessage) -> None:
            if self._ignores_deliveries:
                return
            message = aio_pika.IncomingMessage(delivery)
            exchange, key = message.exchange or "", message.routing_key or ""
            if not bindings.is_own(exchange, key):
                bindings.count_message(exchange, key)
                if is_dead_letter_route(exchange, key):
                    with contextlib.suppress(*SESSION_ERRORS):  # if the connection is lost, `lost` is set elsewhere
                        await message.ack()
                    return
            on_received(Received.of(bindings.queue, message, self.max_wait_s(bindings.queue)))

        consumer = f"door-{next(self._consumer_numbers)}"
        self._consumers[consumer] = bindings, on_received
        with lost_connection_as_error():  # aio-pika's own `consume` would start another task for each message
            await self._aiormq_consuming.basic_consume(bindings.queue, receive, consumer_tag=consumer)

    async def _cancel(self, consumer: str) -> None:
        del self._consumers[consumer]
        with lost_connection_as_error():
            await self._aiormq_consuming.basic_cancel(consumer)


@asynccontextmanager
async def open_session(url: str, settings: Settings) -> AsyncIterator[Session]:
    """Open a session with asserted topology; a context manager.

    Raises:
        Permanent: an exchange or queue exists with other arguments.
        AMQPError, OSError, TimeoutError: RabbitMQ is unavailable or refuses; the text contains no password.
    """
    accept_any_properties()
    async with contextlib.AsyncExitStack() as stack:
        with lost_connection_as_error():
            connection_in = await _connect(stack, url, settings, "in")
            connection_out = await _connect(stack, url, settings, "out")
            await assert_topology(connection_in, partitions=settings.signals_partitions)
            consuming = await connection_in.channel(publisher_confirms=False)
            publishing = await connection_out.channel(publisher_confirms=True)  # `_on_unroutable` handles unroutable messages
            await consuming.set_qos(prefetch_count=settings.signals_prefetch)
        # Only the underlying aiormq channels have the methods and callbacks that a session uses. aio-pika returns them as an
        # abstract class that declares only a part of these.
        aiormq_consuming = cast("Channel", await consuming.get_underlay_channel())
        aiormq_publishing = cast("Channel", await publishing.get_underlay_channel())
        session = Session(consuming, publishing, aiormq_consuming, aiormq_publishing)
        session.repair = lambda: repair_topology(connection_in, partitions=settings.signals_partitions)
        session.ready = aiormq_publishing.connection.ready
        frame_max = aiormq_publishing.connection.connection_tune.frame_max
        if frame_max:  # 0: unlimited
            session.max_properties = min(MAX_PROPERTIES, frame_max - FRAME_OVERHEAD)
        # If a queue is deleted and recreated between two checks, only the consumer cancel notification shows it.
        aiormq_consuming.on_consumer_cancel_callbacks.add(
            lambda _: session.end("RabbitMQ has cancelled a consumer, as when its queue is deleted")
        )
        yield session


@contextlib.contextmanager
def lost_connection_as_error() -> Iterator[None]:
    """Raise ConnectionError for a call to aiormq that fails because the connection was closed.

    When a connection closes, aiormq cancels pending calls, and raises a plain RuntimeError for further calls. A cancellation that
    was requested for the current task is passed on unchanged.

    Raises:
        ConnectionError: the connection was closed.
    """
    try:
        yield
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # a requested cancellation, not one by aiormq
            raise
        raise ConnectionError("the connection has ended") from exc
    except RuntimeError as exc:
        if type(exc) is not RuntimeError:  # a subclass has another cause
            raise
        raise ConnectionError("the connection has ended") from exc


async def _connect(stack: contextlib.AsyncExitStack, url: str, settings: Settings, direction: str) -> AbstractConnection:
    """Open a connection that `stack` closes at its end."""
    connection = await aio_pika.connect(
        url,
        heartbeat=settings.signals_heartbeat_seconds,
        timeout=settings.signals_connect_ms / 1000,
        client_properties={"connection_name": f"manifold signals {direction}"},
    )
    stack.push_async_callback(_close, connection)
    return connection


async def _close(connection: AbstractConnection) -> None:
    """Close a connection, within 5 s. Errors are ignored, because a connection that is already lost needs no closing."""
    with contextlib.suppress(*SESSION_ERRORS), lost_connection_as_error():
        async with asyncio.timeout(5):
            await connection.close()


async def _ack(received: Received, *, multiple: bool = False) -> None:
    assert received.message is not None  # every delivery has one
    with lost_connection_as_error():
        await received.message.ack(multiple=multiple)


def _close_reason(why: BaseException | None) -> str:
    reason = "" if why is None else str(why)
    return f"the channel was closed: {reason}" if reason else "the channel was closed"
