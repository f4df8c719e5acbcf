"""Parses the bodies of MQTT packets into values with EMQX's names. For observing connections only. Pure."""

from dataclasses import dataclass, field

from manifold.sandbox.tap.properties import USER, Properties, Reader
from manifold.sandbox.tap.scanner import CONNACK, UNSUBSCRIBE, Malformed


@dataclass(frozen=True, slots=True)
class Connect:
    """The fields of a CONNECT packet."""

    client_id: str
    version: int  # 3, 4 (MQTT 3.1.1) or 5
    clean_start: bool
    keepalive_s: int
    username: str | None = None
    properties: Properties = field(default_factory=dict)
    is_complete: bool = True  # False: truncated, so everything after the client id is unknown


def read_connect(body: bytes) -> Connect:
    """Parse a CONNECT; its password is not read. If the body is truncated after the client id, `is_complete` is false.

    Raises:
        Malformed: the body is truncated before the end of the client id, or its properties are malformed.
    """
    reader = Reader(body)
    reader.binary()  # the protocol's name
    version = reader.integer(1) & 0x7F  # a bridge sets the highest bit
    flags = reader.integer(1)
    has_username, has_will, clean_start = flags & 0x80, flags & 0x04, bool(flags & 0x02)
    keepalive_s = reader.integer(2)
    properties = reader.properties() if version >= 5 else {}
    client_id = reader.text()
    username, is_complete = None, True
    try:
        if has_will:
            if version >= 5:
                will_properties_size = reader.variable()
                reader.offset += will_properties_size
            reader.binary()  # the Will's topic
            reader.binary()  # the Will's payload
        username = reader.text() if has_username else None
    except Malformed:
        is_complete = False  # longer than the bytes that the scanner keeps; the user name is unknown
    return Connect(client_id, version, clean_start, keepalive_s, username, properties, is_complete)


def read_connack(body: bytes, version: int) -> tuple[bool, int, Properties]:
    """Parse a CONNACK into session present, reason code and properties."""
    reader = Reader(body)
    session_present = bool(reader.integer(1) & 1)
    reason = reader.integer(1)
    properties = reader.properties() if version >= 5 and reader.more else {}
    return session_present, reason, properties


def connack_refusing_client_id(version: int) -> bytes:
    """Return a CONNACK with reason code `Client Identifier not valid`, which MQTT 3.1.1 calls `identifier rejected`."""
    no_session, no_properties = b"\0", b"\0"
    body = no_session + b"\x85" + no_properties if version >= 5 else no_session + b"\x02"
    return packet(CONNACK << 4, body)


def read_ack(body: bytes, version: int) -> tuple[int, int, Properties]:
    """Parse a PUBACK or PUBREC into packet id, reason code and properties.

    Malformed properties are ignored, so that the acknowledgement still counts.
    """
    properties: Properties = {USER: {}}
    if len(body) == 2:  # the packet id alone: the usual case, without a `Reader` for speed
        return body[0] << 8 | body[1], 0, properties
    reader = Reader(body)
    mid, reason = reader.integer(2), 0
    if version >= 5 and reader.more:
        reason = reader.integer(1)
        if reader.more:
            try:
                properties = reader.properties()
            except Malformed:
                properties = {USER: {}}
    return mid, reason, properties


def read_filters(body: bytes, version: int, *, with_options: bool) -> tuple[int, list[str]]:
    """Parse a SUBSCRIBE (filters with options) or UNSUBSCRIBE into packet id and filters."""
    reader = Reader(body)
    mid = reader.integer(2)
    if version >= 5:
        reader.properties()
    filters = []
    while reader.more:
        filters.append(reader.text())
        if with_options:
            reader.integer(1)
    return mid, filters


def read_subscribe(body: bytes, version: int, *, with_options: bool) -> tuple[bytes, list[tuple[bytes, int]]]:
    """Parse a SUBSCRIBE (filters with options) or UNSUBSCRIBE.

    Returns the bytes before the filters (packet id and properties), and each filter with its options; an UNSUBSCRIBE has options
    0.
    """
    reader = Reader(body)
    reader.integer(2)  # the packet id
    if version >= 5:
        reader.properties()
    head, filters = body[: reader.offset], []
    while reader.more:
        topic_filter = reader.binary()
        options = reader.integer(1) if with_options else 0
        filters.append((topic_filter, options))
    return head, filters


def unsubscribe(mid: int, version: int, topic_filter: bytes) -> bytes:
    """Build an UNSUBSCRIBE packet."""
    no_properties = b"\0" if version >= 5 else b""
    return packet(UNSUBSCRIBE << 4 | 2, mid.to_bytes(2) + no_properties + string(topic_filter))


def read_suback(body: bytes, version: int) -> tuple[int, bytes]:
    """Parse a SUBACK or UNSUBACK into packet id and reason codes, one byte for each filter; UNSUBACK has none before MQTT 5."""
    reader = Reader(body)
    mid = reader.integer(2)
    if version >= 5:
        reader.properties()
    return mid, reader.rest()


def read_disconnect(body: bytes, version: int) -> tuple[int, Properties]:
    """Parse a DISCONNECT into reason code and properties. Without a code it is 0, a normal disconnection."""
    reader = Reader(body)
    if version < 5 or not reader.more:
        return 0, {USER: {}}
    reason = reader.integer(1)
    properties = reader.properties() if reader.more else {USER: {}}
    return reason, properties


def variable(value: int) -> bytes:
    """Encode a variable byte integer."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string(value: bytes) -> bytes:
    """Encode length-prefixed bytes (two bytes of length)."""
    return len(value).to_bytes(2) + value


def packet(first_byte: int, body: bytes) -> bytes:
    """Build a packet from its first byte (type and flags) and its body."""
    return bytes((first_byte,)) + variable(len(body)) + body
