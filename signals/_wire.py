"""A connection's bytes: the frames of messages are handled here, as they come, and all others by the library.

The library has a task for each message that comes, a task and two futures for each that goes, and several turns of the loop for
each frame. It keeps what is difficult and rare: greeting, identity, channels, heartbeats, topology, alarms, ends.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from aio_pika.exceptions import AMQPConnectionError
from pamqp.heartbeat import Heartbeat

from signals import _frames
from signals._frames import ACK, AROUND, BODY, DELIVER, END, HEADER, HEARTBEAT, METHOD, METHOD_ID, NACK, RETURN, START, Delivery

Head = tuple[str, int, bool, str, str]  # of a delivery: consumer, tag, whether it came before, exchange, key
RETURNED: Head = ("", 0, False, "", "")  # no delivery
SIGN_OF_LIFE_S = 1.0  # after which the library is told that frames come
_HEARTBEAT = Heartbeat().marshal()


class Wire:
    """The bytes of one connection, and one of its channels, of which messages are handled here. Set the callbacks first."""

    def __init__(self) -> None:
        self.channel = -1  # none yet
        self.delivered: Callable[[Sequence[Delivery]], None] = lambda _: None  # all that came together
        self.confirmed: Callable[[int, bool, bool], None] = lambda *_: None  # tag, whether all up to it, whether it is taken
        self.returned: Callable[[str], None] = lambda _: None
        self.ended: Callable[[str], None] = lambda _: None
        self._transport: asyncio.WriteTransport | None = None

    async def create(self, url: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect; called by the library, whose `transport_factory` this is.

        Raises:
            AMQPConnectionError: nobody answers there.
        """
        provider = options.pop("ssl_context_provider", None)
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = _Frames(reader, self, loop)
        try:
            transport, _ = await loop.create_connection(lambda: protocol, url.host, url.port, ssl=context, **options)
        except OSError as exc:
            raise AMQPConnectionError(*exc.args) from exc
        self._transport = transport
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def write(self, frames: Sequence[bytes]) -> None:
        """Send whole frames, all in one piece, between those of the library.

        Raises:
            ConnectionError: the connection has ended.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection has ended")
        self._transport.write(b"".join(frames))


class _Frames(asyncio.StreamReaderProtocol):
    """Takes the bytes apart. What is not of our channel's messages is passed on as it came."""

    def __init__(self, reader: asyncio.StreamReader, wire: Wire, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._wire, self._clock, self._told_at = wire, loop.time, 0.0
        self._rest = b""
        self._coming: Head | None = None  # whose header and body come
        self._header, self._missing, self._parts = b"", 0, list[bytes]()
        self._found: list[Delivery] = []

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, length, handled = 0, len(data), False
        while length - at >= AROUND:
            kind, channel, size = START.unpack_from(data, at)
            end = at + size + AROUND
            if kind > HEARTBEAT:  # no frame: a server of another protocol
                end = length
            if end > length:
                break
            start = at + START.size
            if channel == self._wire.channel and data[end - 1] == END and self._handle(kind, data[start : end - 1]):
                handled = True
            else:
                super().data_received(data[at:end])
            at = end
        self._rest = data[at:]
        if handled and self._clock() - self._told_at > SIGN_OF_LIFE_S:
            self._told_at = self._clock()
            super().data_received(_HEARTBEAT)
        if self._found:
            found, self._found = self._found, []
            self._wire.delivered(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.ended(str(exc) if exc else "the connection has ended")
        super().connection_lost(exc)

    def _handle(self, kind: int, content: bytes) -> bool:
        """Whether the frame is of a message."""
        if kind == METHOD:
            return self._method(METHOD_ID.unpack_from(content)[0], content)
        if self._coming is None:
            return False
        if kind == HEADER:
            self._header, self._missing = content, _frames.body_size(content)
        elif kind == BODY:
            self._parts.append(content)
            self._missing -= len(content)
        if self._missing <= 0:
            self._whole(self._coming)
        return True

    def _method(self, method: int, content: bytes) -> bool:
        if method == DELIVER:
            self._coming = _frames.delivery_of(content)
        elif method in (ACK, NACK):
            tag, multiple = _frames.confirm_of(content)
            self._wire.confirmed(tag, multiple, method == ACK)
        elif method == RETURN:
            self._coming = RETURNED
            self._wire.returned(_frames.return_of(content))
        else:
            return False
        return True

    def _whole(self, head: Head) -> None:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if head is not RETURNED:
            self._found.append(Delivery(*head, _frames.properties_of(self._header), body))
        self._coming, self._parts = None, []
