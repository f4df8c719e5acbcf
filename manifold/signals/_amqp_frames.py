"""The bytes of a connection: the frames of messages are handled here, all others by the library.

The library has a task for each message received, a task and two futures for each message sent, and several turns of the loop for
each frame. It still does what is rare and difficult: greeting, identity, channels, heartbeats, topology, alarms, closing. The
contents of frames are read and written by the library's own codec, pamqp.
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

AROUND = FRAME_HEADER_SIZE + 1  # bytes of a frame besides its content
SIGN_OF_LIFE_S = 1.0  # after which the library is told that frames come
_HEARTBEAT = Heartbeat().marshal()


class Delivery(NamedTuple):
    """A message on its way to a consumer."""

    by: Any  # Basic.Deliver, of which the library says that each field may be missing
    properties: Basic.Properties
    body: bytes


class Wire:
    """The bytes of one connection. Messages of one of its channels are handled here. Set the callbacks first."""

    def __init__(self) -> None:
        self.channel = -1  # none yet
        self.delivered: Callable[[Sequence[Delivery]], None] = lambda _: None  # all that came together
        self.confirmed: Callable[[int, bool, bool], None] = lambda *_: None  # tag, whether all up to it, whether it is taken
        self.returned: Callable[[str], None] = lambda _: None
        self.ended: Callable[[str], None] = lambda _: None
        self._transport: asyncio.Transport | None = None

    async def create(self, url: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect; called by the library, whose `transport_factory` this is.

        Raises:
            AMQPConnectionError: nobody answers there.
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
        """Send whole frames, one after the other, between those of the library.

        Raises:
            ConnectionError: the connection has ended.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection has ended")
        self._transport.writelines(frames)

    def pause(self) -> None:
        """Read nothing until `go_on`; the server keeps what it has."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class Frames(asyncio.StreamReaderProtocol):
    """Takes the bytes apart. What is not of our channel's messages is passed on as it came."""

    def __init__(self, reader: asyncio.StreamReader, wire: Wire, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._wire, self._clock, self._told_at = wire, loop.time, 0.0
        self._rest = b""
        self._coming: Basic.Deliver | Basic.Return | None = None  # whose header and body come
        self._header, self._missing, self._parts = ContentHeader(), 0, list[bytes]()
        self._found: list[Delivery] = []

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, length, handled = 0, len(data), False
        while length - at >= AROUND:
            kind, channel, size = frame.frame_parts(data[at : at + FRAME_HEADER_SIZE])
            end = at + AROUND + (size or 0)
            if kind > FRAME_HEARTBEAT:  # no frame: a server of another protocol
                end = length
            if end > length:
                break
            if channel == self._wire.channel and data[end - 1] == FRAME_END and self._handle(kind, data[at:end]):
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

    def _handle(self, kind: int, raw: bytes) -> bool:
        """Whether the frame is of a message."""
        if kind == FRAME_BODY:
            if self._coming is None:
                return False
            content = raw[FRAME_HEADER_SIZE:-1]
            self._parts.append(content)
            self._missing -= len(content)
        elif not self._read(raw):
            return False
        if self._coming is not None and self._missing <= 0:
            self._whole(self._coming)
        return True

    def _read(self, raw: bytes) -> bool:
        """Whether it is a method or header of a message."""
        try:
            _, _, found = frame.unmarshal(raw)
        except UnmarshalingException:
            return False
        match found:
            case Basic.Deliver() | Basic.Return():
                self._coming, self._missing = found, 1  # at least a header
            case Basic.Ack() | Basic.Nack():
                self._wire.confirmed(found.delivery_tag or 0, found.multiple, isinstance(found, Basic.Ack))
            case ContentHeader() if self._coming is not None:
                self._header, self._missing = found, found.body_size
            case _:
                return False
        return True

    def _whole(self, method: Basic.Deliver | Basic.Return) -> None:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._coming, self._parts = None, []
        if isinstance(method, Basic.Deliver):
            self._found.append(Delivery(method, self._header.properties, body))
        else:
            self._wire.returned(method.reply_text)
