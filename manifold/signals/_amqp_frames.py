"""AMQP framing for one connection: message frames are handled here, all other frames by aiormq.

aiormq creates a task for each received message, a task and two futures for each sent one, and takes several event loop turns
for each frame. It keeps the rare and difficult parts: handshake, authentication, channels, heartbeats, topology, alarms, closing.
Frames are encoded and decoded with its own codec, pamqp.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aio_pika.exceptions import AMQPConnectionError
from pamqp import frame
from pamqp.commands import Basic
from pamqp.constants import FRAME_BODY, FRAME_END, FRAME_HEADER_SIZE, FRAME_HEARTBEAT
from pamqp.exceptions import UnmarshalingException
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

FRAME_OVERHEAD_BYTES = FRAME_HEADER_SIZE + 1  # frame overhead in bytes: header and end octet
KEEPALIVE_S = 1.0  # how often aiormq is fed a heartbeat while we handle the frames
_HEARTBEAT = Heartbeat().marshal()


class Delivery(NamedTuple):
    """A message delivered to a consumer."""

    by: Any  # Basic.Deliver; untyped, because pamqp declares every field optional
    properties: Basic.Properties
    body: bytes


class FrameStream:
    """The byte stream of one connection, which handles the messages of one channel. Set the callbacks before use."""

    def __init__(self) -> None:
        self.channel = -1  # none yet
        self.delivered: Callable[[Sequence[Delivery]], None] = lambda _: None  # every delivery of one read
        self.confirmed: Callable[[int, bool, bool], None] = lambda *_: None  # delivery tag, multiple, whether it is an ack
        self.returned: Callable[[str], None] = lambda _: None
        self.ended: Callable[[str], None] = lambda _: None
        self._transport: asyncio.Transport | None = None

    async def create(self, url: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect. aiormq calls this, as its `transport_factory`.

        Raises:
            AMQPConnectionError: the connection cannot be established.
        """
        provider = options.pop("ssl_context_provider", None)
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = Frames(reader, self, loop)
        try:
            transport, _ = await loop.create_connection(lambda: protocol, url.host, url.port, ssl=context, **options)
        except OSError as exc:
            raise AMQPConnectionError(*exc.args) from exc
        self._transport = transport
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def write(self, frames: Sequence[bytes]) -> None:
        """Write whole frames in order, interleaved with those of aiormq.

        Raises:
            ConnectionError: the connection is closed.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection has ended")
        self._transport.writelines(frames)

    def pause(self) -> None:
        """Stop reading until `resume`; messages stay at the server."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class Frames(asyncio.StreamReaderProtocol):
    """Splits the byte stream into frames; passes everything but the messages of our channel to aiormq unchanged."""

    def __init__(self, reader: asyncio.StreamReader, wire: FrameStream, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._wire, self._clock, self._fed_at = wire, loop.time, 0.0
        self._rest = b""
        self._method: Basic.Deliver | Basic.Return | None = None  # the method whose header and body are being received
        self._header, self._remaining, self._parts = ContentHeader(), 0, list[bytes]()
        self._found: list[Delivery] = []

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, length, handled = 0, len(data), False
        while length - at >= FRAME_OVERHEAD_BYTES:
            kind, channel, size = frame.frame_parts(data[at : at + FRAME_HEADER_SIZE])
            end = at + FRAME_OVERHEAD_BYTES + (size or 0)
            if kind > FRAME_HEARTBEAT:  # not an AMQP frame: the server speaks another protocol
                end = length
            if end > length:
                break
            if channel == self._wire.channel and data[end - 1] == FRAME_END and self._handle(kind, data[at:end]):
                handled = True
            else:
                super().data_received(data[at:end])
            at = end
        self._rest = data[at:]
        if handled and self._clock() - self._fed_at > KEEPALIVE_S:
            self._fed_at = self._clock()
            super().data_received(_HEARTBEAT)
        if self._found:
            found, self._found = self._found, []
            self._wire.delivered(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.ended(str(exc) if exc else "the connection has ended")
        super().connection_lost(exc)

    def _handle(self, kind: int, raw: bytes) -> bool:
        """Consume a frame; return whether it is part of a message."""
        if kind == FRAME_BODY:
            if self._method is None:
                return False
            content = raw[FRAME_HEADER_SIZE:-1]
            self._parts.append(content)
            self._remaining -= len(content)
        elif not self._read(raw):
            return False
        if self._method is not None and self._remaining <= 0:
            self._complete(self._method)
        return True

    def _read(self, raw: bytes) -> bool:
        """Consume a method or header frame; return whether it is part of a message."""
        try:
            _, _, found = frame.unmarshal(raw)
        except UnmarshalingException:
            return False
        match found:
            case Basic.Deliver() | Basic.Return():
                self._method, self._remaining = found, 1  # nonzero until the header sets the body size
            case Basic.Ack() | Basic.Nack():
                self._wire.confirmed(found.delivery_tag or 0, found.multiple, isinstance(found, Basic.Ack))
            case ContentHeader() if self._method is not None:
                self._header, self._remaining = found, found.body_size
            case _:
                return False
        return True

    def _complete(self, method: Basic.Deliver | Basic.Return) -> None:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._method, self._parts = None, []
        if isinstance(method, Basic.Deliver):
            self._found.append(Delivery(method, self._header.properties, body))
        else:
            self._wire.returned(method.reply_text)
