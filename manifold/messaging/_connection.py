"""One MQTT 5 client connection on an asyncio transport: bytes in, packets out. Packets are encoded and decoded by mqtt5."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import mqtt5
import structlog

from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.tls import NO_FILES, TlsFiles
from manifold.messaging import _raw
from manifold.runtime.tls import client_context

_USES_TLS = {"mqtt": False, "tcp": False, "mqtts": True, "ssl": True}  # by URL scheme
_TLS_PORT, _PLAIN_PORT = 8883, 1883
_PUBLISH_HEAD_BYTES = 70_000  # more than everything that precedes the properties of a PUBLISH: header, topic and packet id
# mqtt5 0.8 panics on text that is not UTF-8, and any client may send such text. Without a backtrace, a panic costs less than
# the 24 ms that it takes with one.
os.environ["RUST_BACKTRACE"] = "0"

log = structlog.get_logger(__name__)
PacketHandler = Callable[[mqtt5.Packet], None]
UndecodableHandler = Callable[[bytes, str], None]  # arguments: the raw packet, and why it cannot be decoded
LossHandler = Callable[[str], None]  # argument: why the connection was lost


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of the broker, and its TLS files."""

    host: str
    port: int
    tls: bool
    files: TlsFiles = NO_FILES

    @classmethod
    def of(cls, url: str, files: TlsFiles = NO_FILES) -> "Endpoint":
        """Parse a broker URL.

        Raises:
            Permanent: the URL is invalid.
        """
        invalid = Permanent(f"mqtt_url={url!r} must look like mqtt://host:1883 or mqtts://host:8883")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as exc:  # the URL cannot be parsed, or its port is out of range
            raise invalid from exc
        if parts.scheme not in _USES_TLS or not host or port == 0:
            raise invalid
        tls = _USES_TLS[parts.scheme]
        default_port = _TLS_PORT if tls else _PLAIN_PORT
        return cls(host, port or default_port, tls, files)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection(asyncio.Protocol):
    """A connection made by `open_connection`.

    `on_packet` receives the decodable packets and `on_undecodable` the others, in the order of arrival. `on_lost` is called once,
    when the connection has ended.
    """

    def __init__(
        self, endpoint: Endpoint, on_packet: PacketHandler, on_undecodable: UndecodableHandler, on_lost: LossHandler
    ) -> None:
        self._broker = str(endpoint)  # for the log
        self._on_packet, self._on_undecodable, self._on_lost = on_packet, on_undecodable, on_lost
        self._transport: asyncio.Transport  # set by `connection_made`
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._partial = bytearray()  # the beginning of an incomplete packet
        self._partial_length = 0  # length of that packet once it is complete, in bytes; 0: unknown
        self._sent_at = self._heard_at = time.monotonic()
        self._paused = False

    def send(self, packet: bytes) -> None:
        """Queue a packet; all packets of one event loop turn are sent in one write."""
        if not self._out:  # this is the first packet of the turn
            self._loop.call_soon(self.flush)
        self._out.append(packet)

    def flush(self) -> None:
        """Write the queued packets now."""
        if self._out:
            out, self._out = self._out, []
            self._sent_at = time.monotonic()
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def keepalive(self, keepalive_s: float) -> None:
        """Ping when idle; abort if the broker stays silent. Call it several times per `keepalive_s`.

        A connection is idle if nothing was sent, or nothing was received, for half of `keepalive_s`.
        """
        now = time.monotonic()
        if self._paused:  # nothing is received while reading is paused, so only a failing write shows a lost connection
            self._heard_at = now
            self.send(mqtt5.PingReqPacket().write())
            return
        silent_s = now - self._heard_at
        idle_s = now - min(self._sent_at, self._heard_at)
        if silent_s > keepalive_s * 1.5:
            log.warning("mqtt broker silent; connection aborted", broker=self._broker, silent_s=round(silent_s, 1))
            self.abort()
        elif idle_s > keepalive_s / 2:
            self.send(mqtt5.PingReqPacket().write())

    def pause(self) -> None:
        """Stop reading, so that the broker must buffer. Idempotent."""
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        if self._paused:
            self._paused, self._heard_at = False, time.monotonic()
            self._transport.resume_reading()

    def close(self) -> None:
        """Send queued packets, then close the connection."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # Callbacks of the transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not derive from asyncio.Transport

    def data_received(self, data: bytes) -> None:
        """Decode complete packets; buffer an incomplete one."""
        self._heard_at = time.monotonic()
        if self._partial:
            self._partial += data
            if len(self._partial) < self._partial_length:
                return
            data = bytes(self._partial)
            self._partial.clear()
        consumed = self._read_packets(data)
        if consumed < len(data):
            self._partial += data[consumed:]
            length = _raw.length_of(data[consumed : consumed + _raw.LONGEST_HEADER])
            self._partial_length = length or 0  # None, an invalid length, cannot be left: `_read_packets` aborts on it

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection has ended, whichever side closed it."""
        self._on_lost(str(exc) if exc else "connection closed")

    def _read_packets(self, data: bytes) -> int:
        """Pass each complete packet in `data` to its handler, and return how many bytes these packets have together."""
        start = 0
        while start < len(data):
            size = self._read_packet(data, start)
            if size == 0:  # the packet is incomplete
                break
            start += size
        return start

    def _read_packet(self, data: bytes, start: int) -> int:
        """Pass the packet that begins at `data[start]` to its handler; return its length in bytes, or 0 if it is incomplete."""
        may_be_long = len(data) - start > _raw.LONGEST_PROPERTIES
        if may_be_long and _raw.has_long_properties(data[start : start + _PUBLISH_HEAD_BYTES]):
            return self._handle_undecodable(data, start, f"its properties are over {_raw.LONGEST_PROPERTIES} bytes")
        try:
            packet, size = mqtt5.read(memoryview(data)[start:])
        except IndexError:  # the packet is incomplete
            return 0
        except BaseException as exc:  # a Rust panic derives from BaseException
            if isinstance(exc, KeyboardInterrupt | SystemExit):
                raise
            reason = str(exc) if isinstance(exc, Exception) else "a text in it is not UTF-8"
            return self._handle_undecodable(data, start, reason)
        self._on_packet(packet)
        return size

    def _handle_undecodable(self, data: bytes, start: int, reason: str) -> int:
        """Pass the undecodable packet that begins at `data[start]` to `on_undecodable`.

        Returns its length in bytes, or 0 if the packet is incomplete. If even its length is invalid, the connection is aborted
        and the rest of `data` counts as the packet.
        """
        size = _raw.length_of(data[start : start + _raw.LONGEST_HEADER])
        if size is None:
            log.error("mqtt packet has an invalid length; connection aborted", broker=self._broker, reason=reason)
            self.abort()
            return len(data) - start
        if start + size > len(data):
            return 0
        packet_type = data[start] >> 4
        log.error("mqtt packet cannot be decoded", broker=self._broker, reason=reason, packet_type=packet_type, size_bytes=size)
        self._on_undecodable(data[start : start + size], reason)
        return size


async def open_connection(
    endpoint: Endpoint, on_packet: PacketHandler, on_undecodable: UndecodableHandler, on_lost: LossHandler
) -> Connection:
    """Open a TCP or TLS connection to the broker, and send nothing.

    Raises:
        Retryable: the broker is unreachable, TLS fails, or the TLS files cannot be read. Files may be unreadable for a moment
            while they are renewed.
    """
    loop = asyncio.get_running_loop()
    try:
        ssl_context = client_context(endpoint.files) if endpoint.tls else None
        _, connection = await loop.create_connection(
            lambda: Connection(endpoint, on_packet, on_undecodable, on_lost), endpoint.host, endpoint.port, ssl=ssl_context
        )
    except OSError as exc:
        raise Retryable(f"no connection to {endpoint}: {exc}") from exc
    return connection
