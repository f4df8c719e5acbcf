"""One connection of an MQTT 5 client: bytes in, packets out, on an asyncio transport. The packets themselves are mqtt5's."""

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
_LONG_HEAD = 70_000  # bytes: a PUBLISH up to its properties is shorter
# mqtt5 0.8 panics where a text is not UTF-8. A backtrace of that takes 24 ms, and anybody may send such texts.
os.environ["RUST_BACKTRACE"] = "0"

log = structlog.get_logger(__name__)
Take = Callable[[mqtt5.Packet], None]
TakeRaw = Callable[[bytes, str], None]  # a whole packet that was not read, and why
Lost = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of the broker."""

    host: str
    port: int
    tls: bool
    files: TlsFiles = NO_FILES

    @classmethod
    def of(cls, url: str, files: TlsFiles = NO_FILES) -> "Endpoint":
        """The endpoint that `url` names.

        Raises:
            Permanent: it names none.
        """
        parts = urlsplit(url)
        if parts.scheme not in _TLS_SCHEMES or not parts.hostname:
            raise Permanent(f"mqtt_url={url!r} must look like mqtt://host:1883 or mqtts://host:8883")
        tls = _TLS_SCHEMES[parts.scheme]
        return cls(parts.hostname, parts.port or (_TLS_PORT if tls else _PLAIN_PORT), tls, files)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection(asyncio.Protocol):
    """From `open_connection`. `take` gets each packet, in the order in which they came; `lost` is called once, at the end.

    `take_raw` gets what cannot be read, in its place in that order.
    """

    def __init__(self, take: Take, take_raw: TakeRaw, lost: Lost) -> None:
        self._take, self._take_raw, self._lost = take, take_raw, lost
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._partial = bytearray()  # the beginning of a packet, and how long the packet is
        self._wanted = 0
        self._sent_at = self._heard_at = time.monotonic()
        self._paused = False

    def send(self, packet: bytes) -> None:
        """After all that was sent before; one write for all that this turn of the loop sends."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(packet)

    def flush(self) -> None:
        """Write what was sent and is not written yet."""
        if self._out:
            out, self._out = self._out, []
            self._sent_at = time.monotonic()
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def keepalive(self, keepalive_s: float) -> None:
        """Ping if the line was silent, and hang up where not even that is answered. Call it several times in `keepalive_s`."""
        now = time.monotonic()
        if self._paused:  # then only a write tells that the connection is gone
            self._heard_at = now
            self.send(mqtt5.PingReqPacket().write())
        elif now - self._heard_at > keepalive_s * 1.5:
            log.warning("mqtt broker silent", for_s=round(now - self._heard_at, 1))
            self.abort()
        elif now - min(self._sent_at, self._heard_at) > keepalive_s / 2:
            self.send(mqtt5.PingReqPacket().write())

    def pause(self) -> None:
        """Read nothing more: the broker has to keep what it wants to send. Calling it again changes nothing."""
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused, self._heard_at = False, time.monotonic()
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what is waiting, then end the connection."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    # What the transport tells -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)  # of a stream; uvloop's has no base class that says so

    def data_received(self, data: bytes) -> None:
        """Bytes have come: whole packets go on, the beginning of one waits for the rest."""
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
        """The connection has ended, by whichever side."""
        self._lost(str(exc) if exc else "connection closed")

    def _read(self, data: bytes) -> int:
        """Hand on the whole packets in `data`; how many bytes they were."""
        view, at, end = memoryview(data), 0, len(data)
        while at < end:
            if end - at > _raw.LONGEST_PROPERTIES and _raw.has_long_properties(data[at : at + _LONG_HEAD]):
                size = self._pass_on(data, at, f"its properties are over {_raw.LONGEST_PROPERTIES} bytes")
            else:
                try:
                    packet, size = mqtt5.read(view[at:])
                except IndexError:  # not all of it has come
                    break
                except BaseException as exc:  # a panic is not an Exception
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
        """A packet that was not read, as it is; how long it is. 0: not all of it has come."""
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
    """A connected socket, over which nothing was said yet.

    Raises:
        Retryable: nobody is there, or TLS fails; or its files cannot be read now: they may be being renewed.
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
