"""MQTT over a plain socket, for tests that control the exact bytes and their timing."""

import socket
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from manifold.sandbox.tap.packets import packet, string, variable
from manifold.sandbox.tap.properties import Reader

CONNACK, PUBLISH, PUBACK, SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 2, 3, 4, 9, 11, 13, 14


def connect(client_id: str, version: int = 5, *, clean: bool = True, username: str | None = None, expiry_s: int = 0) -> bytes:
    """A CONNECT packet."""
    flags = (2 if clean else 0) | (0x80 if username else 0)
    properties = variable(5) + b"\x11" + expiry_s.to_bytes(4) if version == 5 else b""
    body = string(b"MQTT") + bytes((version, flags, 0, 60)) + properties + string(client_id.encode())
    return packet(0x10, body + (string(username.encode()) if username else b""))


def subscribe(topic_filter: str, version: int = 5, *, mid: int = 1, qos: int = 1) -> bytes:
    """A SUBSCRIBE packet."""
    return packet(0x82, mid.to_bytes(2) + (b"\0" if version == 5 else b"") + string(topic_filter.encode()) + bytes((qos,)))


def user_properties(**pairs: str) -> bytes:
    """User properties without a length prefix."""
    return b"".join(b"\x26" + string(key.replace("_", "-").encode()) + string(value.encode()) for key, value in pairs.items())


def publish(
    topic: str, payload: bytes = b"", version: int = 5, *, mid: int = 1, qos: int = 1, dup: bool = False, properties: bytes = b""
) -> bytes:
    """A PUBLISH packet."""
    body = string(topic.encode()) + (mid.to_bytes(2) if qos else b"")
    body += variable(len(properties)) + properties if version == 5 else b""
    return packet(0x30 | qos << 1 | dup << 3, body + payload)


def puback(mid: int, reason: int | None = None) -> bytes:
    """A PUBACK packet; with a reason only on MQTT 5."""
    return packet(0x40, mid.to_bytes(2) + (b"" if reason is None else bytes((reason,))))


@dataclass(frozen=True, slots=True)
class Got:
    """One packet from the broker."""

    kind: int
    first: int
    body: bytes
    version: int = 5

    @property
    def dup(self) -> bool:
        return bool(self.first & 8)

    @property
    def topic(self) -> str:
        return Reader(self.body).text()

    @property
    def mid(self) -> int:
        read = Reader(self.body)
        if self.kind == PUBLISH:
            read.binary()
        return read.integer(2)

    @property
    def payload(self) -> bytes:
        """The payload of a PUBLISH with QoS 1."""
        read = Reader(self.body)
        read.binary()
        read.integer(2)
        if self.version == 5:
            read.properties()
        return read.rest()

    @property
    def reason(self) -> int:
        """The reason code of a CONNACK or PUBACK."""
        at = 1 if self.kind == CONNACK else 2
        return self.body[at] if len(self.body) > at else 0


class RawConnection:
    """One connection; every packet is read explicitly."""

    def __init__(
        self,
        port: int,
        *,
        version: int = 5,
        within_s: float = 15,
        tls: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), within_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1", session=session)
        self._read = bytearray()
        self.received = bytearray()  # everything received

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def next(self) -> Got:
        """Read the next packet.

        Raises:
            EOFError: the connection is closed.
            TimeoutError: no packet arrives.
        """
        while (got := self._whole()) is None:
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise EOFError("closed by the broker")
            self._read += chunk
            self.received += chunk
        return got

    def expect(self, kind: int) -> Got:
        """The next packet of this kind; others are skipped."""
        while (got := self.next()).kind != kind:
            pass
        return got

    def open(self, client_id: str, *, clean: bool = True, username: str | None = None, expiry_s: int = 0) -> Got:
        """Connect; return the CONNACK."""
        self.send(connect(client_id, self.version, clean=clean, username=username, expiry_s=expiry_s))
        return self.expect(CONNACK)

    def listen(self, topic_filter: str) -> Got:
        """Subscribe with QoS 1; return the SUBACK."""
        self.send(subscribe(topic_filter, self.version))
        return self.expect(SUBACK)

    def _whole(self) -> Got | None:
        size = shift = 0
        for at in range(1, min(len(self._read), 5)):
            size |= (self._read[at] & 127) << shift
            shift += 7
            if self._read[at] < 128:
                end = at + 1 + size
                if len(self._read) < end:
                    return None
                first, body = self._read[0], bytes(self._read[at + 1 : end])
                del self._read[:end]
                return Got(first >> 4, first, body, self.version)
        return None
