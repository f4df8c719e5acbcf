"""Parses the bodies of MQTT packets into values with EMQX's names. For observing connections only. Pure."""

from dataclasses import dataclass, field

from manifold.sandbox.tap.properties import USER, Properties, Reader
from manifold.sandbox.tap.scanner import Malformed


@dataclass(frozen=True, slots=True)
class Connect:
    """The fields of a CONNECT packet."""

    client_id: str
    version: int  # 3, 4 (MQTT 3.1.1) or 5
    clean_start: bool
    keepalive_s: int
    username: str | None = None
    properties: Properties = field(default_factory=dict)
    whole: bool = True  # False: truncated, so everything after the client id is unknown


def read_connect(body: bytes) -> Connect:
    """Parse a CONNECT. A truncated Will or password is not an error, because neither is needed."""
    read = Reader(body)
    read.binary()
    version, flags, keepalive = read.integer(1) & 0x7F, read.integer(1), read.integer(2)
    properties = read.properties() if version >= 5 else {}
    client_id, username, whole = read.text(), None, True
    try:
        if flags & 0x04:
            if version >= 5:
                size = read.variable()
                read.at += size
            read.binary()
            read.binary()
        username = read.text() if flags & 0x80 else None
    except Malformed:
        whole = False  # longer than the retained bytes; the user name is unknown
    return Connect(client_id, version, bool(flags & 0x02), keepalive, username, properties, whole)


def read_connack(body: bytes, version: int) -> tuple[bool, int, Properties]:
    """Parse a CONNACK into session present, reason code and properties."""
    read = Reader(body)
    present, reason = read.integer(1), read.integer(1)
    return bool(present & 1), reason, read.properties() if version >= 5 and read.more else {}


def refusal(version: int) -> bytes:
    """Return a CONNACK that refuses a client id which is reserved or belongs to another client."""
    return packet(0x20, b"\0\x85\0" if version >= 5 else b"\0\x02")


def read_ack(body: bytes, version: int) -> tuple[int, int, Properties]:
    """Parse a PUBACK or PUBREC into packet id, reason code and properties. Malformed properties are ignored: the ack counts."""
    properties: Properties = {USER: {}}
    if len(body) == 2:
        return body[0] << 8 | body[1], 0, properties
    read = Reader(body)
    mid, reason = read.integer(2), 0
    if version >= 5 and read.more:
        reason = read.integer(1)
        try:
            properties = read.properties() if read.more else properties
        except Malformed:
            properties = {USER: {}}
    return mid, reason, properties


def read_filters(body: bytes, version: int, *, with_options: bool) -> tuple[int, list[str]]:
    """Parse a SUBSCRIBE (filters with options) or UNSUBSCRIBE into packet id and filters."""
    read = Reader(body)
    mid, filters = read.integer(2), []
    if version >= 5:
        read.properties()
    while read.more:
        filters.append(read.text())
        if with_options:
            read.integer(1)
    return mid, filters


def read_subscribe(body: bytes, version: int, *, with_options: bool) -> tuple[bytes, list[tuple[bytes, int]]]:
    """Parse a SUBSCRIBE or UNSUBSCRIBE into the bytes before the filters (id, properties), and each filter with its options."""
    read = Reader(body)
    read.integer(2)
    if version >= 5:
        read.properties()
    head, wanted = body[: read.at], []
    while read.more:
        wanted.append((read.binary(), read.integer(1) if with_options else 0))
    return head, wanted


def unsubscribe(mid: int, version: int, topic_filter: bytes) -> bytes:
    """Build an UNSUBSCRIBE packet."""
    return packet(0xA2, mid.to_bytes(2) + (b"\0" if version >= 5 else b"") + string(topic_filter))


def read_suback(body: bytes, version: int) -> tuple[int, bytes]:
    """Parse a SUBACK or UNSUBACK into packet id and reason codes; UNSUBACK has none before MQTT 5."""
    read = Reader(body)
    mid = read.integer(2)
    if version >= 5:
        read.properties()
    return mid, read.rest()


def read_disconnect(body: bytes, version: int) -> tuple[int, Properties]:
    """Parse a DISCONNECT into reason code and properties."""
    read = Reader(body)
    if version < 5 or not read.more:
        return 0, {USER: {}}
    reason = read.integer(1)
    return reason, read.properties() if read.more else {USER: {}}


def variable(value: int) -> bytes:
    """Encode a variable byte integer."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(value: bytes) -> bytes:
    """Encode length-prefixed bytes (two bytes of length)."""
    return len(value).to_bytes(2) + value


def packet(first: int, body: bytes) -> bytes:
    """Build a packet from its first byte and body."""
    return bytes((first,)) + variable(len(body)) + body
