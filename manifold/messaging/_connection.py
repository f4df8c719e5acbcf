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

_TLS_SCHEMES = {"mqtt": False, "tcp": False, "mqtts": True, "ssl": True}
_TLS_PORT, _PLAIN_PORT = 8883, 1883
_LONG_HEAD = 70_000  # bytes; a PUBLISH up to its properties is shorter
# mqtt5 0.8 panics on text that is not UTF-8, which anybody may send; with a backtrace each panic takes 24 ms.
os.environ["RUST_BACKTRACE"] = "0"

log = structlog.get_logger(__name__)
Take = Callable[[mqtt5.Packet], None]
TakeRaw = Callable[[bytes, str], None]  # an undecodable packet, and the reason
Lost = Callable[[str], None]


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
        parts = urlsplit(url)
        if parts.scheme not in _TLS_SCHEMES or not parts.hostname:
            raise Permanent(f"mqtt_url={url!r} must look like mqtt://host:1883 or mqtts://host:8883")
        tls = _TLS_SCHEMES[parts.scheme]
        return cls(parts.hostname, parts.port or (_TLS_PORT if tls else _PLAIN_PORT), tls, files)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection(asyncio.Protocol):
    """A connection made by `open_connection`. `take` receives each packet in order; `lost` is called once, at the end.

    `take_raw` receives undecodable packets, in the same order.
    """

    def __init__(self, take: Take, take_raw: TakeRaw, lost: Lost) -> None:
        self._take, self._take_raw, self._lost = take, take_raw, lost
        self._transport: asyncio.Transport  # set by `connection_made`
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._partial = bytearray()  # the beginning of an incomplete packet
        self._wanted = 0  # length of that packet; 0: unknown
        self._sent_at = self._heard_at = time.monotonic()
        self._paused = False

    def send(self, packet: bytes) -> None:
        """Queue a packet; all packets of one event loop turn are sent in one write."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(packet)

    def flush(self) -> None:
        """Write the queued packets now."""
        if self._out:
            out, self._out = self._out, []
            self._sent_at = time.monotonic()
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def keepalive(self, keepalive_s: float) -> None:
        """Ping when idle; abort if the broker stays silent. Call it several times per `keepalive_s`."""
        now = time.monotonic()
        if self._paused:  # while reading is paused, only a failing write shows a lost connection
            self._heard_at = now
            self.send(mqtt5.PingReqPacket().write())
        elif now - self._heard_at > keepalive_s * 1.5:
            log.warning("mqtt broker silent", for_s=round(now - self._heard_at, 1))
            self.abort()
        elif now - min(self._sent_at, self._heard_at) > keepalive_s / 2:
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
            if len(self._partial) < self._wanted:
                return
            data = bytes(self._partial)
            self._partial.clear()
        at = self._read(data)
        if at < len(data):
            self._partial += data[at:]
            self._wanted = _raw.length_of(data[at : at + _raw.LONGEST_HEADER]) or 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection has ended, on either side."""
        self._lost(str(exc) if exc else "connection closed")

    def _read(self, data: bytes) -> int:
        """Pass on the complete packets in `data`; return how many bytes were consumed."""
        view, at, end = memoryview(data), 0, len(data)
        while at < end:
            if end - at > _raw.LONGEST_PROPERTIES and _raw.has_long_properties(data[at : at + _LONG_HEAD]):
                size = self._pass_on(data, at, f"its properties are over {_raw.LONGEST_PROPERTIES} bytes")
            else:
                try:
                    packet, size = mqtt5.read(view[at:])
                except IndexError:  # incomplete packet
                    break
                except BaseException as exc:  # a Rust panic derives from BaseException
                    if isinstance(exc, KeyboardInterrupt | SystemExit):
                        raise
                    size = self._pass_on(data, at, str(exc) if isinstance(exc, Exception) else "a text in it is not UTF-8")
                else:
                    self._take(packet)
            if not size:
                break
            at += size
        return at

    def _pass_on(self, data: bytes, at: int, why: str) -> int:
        """Pass on an undecodable packet; return its length, or 0 if it is incomplete."""
        size = _raw.length_of(data[at : at + _raw.LONGEST_HEADER])
        if size is None:
            log.error("mqtt stream broken", reason=why)
            self.abort()
            return len(data) - at
        if at + size > len(data):
            return 0
        log.error("mqtt packet not readable", reason=why, kind=data[at] >> 4, size=size)
        self._take_raw(data[at : at + size], why)
        return size


async def open_connection(endpoint: Endpoint, take: Take, take_raw: TakeRaw, lost: Lost) -> Connection:
    """Connect a socket; nothing is sent yet.

    Raises:
        Retryable: the broker is unreachable, TLS fails, or its files cannot be read, which may be transient during renewal.
    """
    loop = asyncio.get_running_loop()
    try:
        secure = client_context(endpoint.files) if endpoint.tls else None
        _, connection = await loop.create_connection(
            lambda: Connection(take, take_raw, lost), endpoint.host, endpoint.port, ssl=secure
        )
    except OSError as exc:
        raise Retryable(f"no connection to {endpoint}: {exc}") from exc
    return connection
