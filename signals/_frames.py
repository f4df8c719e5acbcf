"""The frames that there is one of for each message: deliveries read, publishes written, all of it by hand. Pure.

The library does the same field by field, for every kind of frame there is, and takes longer for it than the door takes for the
message. What is unusual is left to it.
"""

import struct
from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

from pamqp.commands import Basic
from pamqp.header import ContentHeader

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8  # kinds of frames
END = 0xCE  # how each ends
AROUND = 8  # bytes of a frame besides its content
DELIVER, RETURN, ACK, NACK = 0x3C003C, 0x3C0032, 0x3C0050, 0x3C0078  # methods, by class and number
START = Struct(">BHI")  # of a frame: kind, channel, size
METHOD_ID = Struct(">I")
_TAG, _SIZE, _FLAGS = Struct(">QB"), Struct(">I"), Struct(">H")
_HEADER = Struct(">HHQ")  # class, weight, size of the body
_BASIC, _PUBLISH, _LONG_TEXT = 60, b"\x00\x3c\x00\x28\x00\x00", ord("S")
_CONTENT_TYPE, _ENCODING, _HEADERS, _MODE, _PRIORITY, _CORRELATION = (1 << bit for bit in (15, 14, 13, 12, 11, 10))
_MESSAGE_ID, _TIMESTAMP = 1 << 7, 1 << 6
_UNUSUAL = 0xFFFF & ~(_CONTENT_TYPE | _ENCODING | _HEADERS | _MODE | _PRIORITY | _CORRELATION | _MESSAGE_ID)


class Delivery(NamedTuple):
    """A message on its way to a consumer."""

    consumer: str
    tag: int
    redelivered: bool
    exchange: str
    key: str  # by which it was routed
    properties: Basic.Properties
    body: bytes


def delivery_of(method: bytes) -> tuple[str, int, bool, str, str]:
    """The first five fields of a delivery; of the content of a method frame that delivers."""
    consumer, at = _short(method, METHOD_ID.size)
    tag, redelivered = _TAG.unpack_from(method, at)
    exchange, at = _any_short(method, at + _TAG.size)
    return consumer, tag, bool(redelivered & 1), exchange, _any_short(method, at)[0]


def confirm_of(method: bytes) -> tuple[int, bool]:
    """Tag, and whether all before it are meant, too; of the content of a method frame that confirms or refuses."""
    tag, multiple = _TAG.unpack_from(method, 4)
    return tag, bool(multiple & 1)


def return_of(method: bytes) -> str:
    """Why a message comes back; of the content of a method frame that returns one."""
    return method[7 : 7 + method[6]].decode("utf-8", "replace")


def body_size(header: bytes) -> int:
    """Bytes of the body that follows; of the content of a header frame."""
    return int(_HEADER.unpack_from(header)[2])


def properties_of(header: bytes) -> Basic.Properties:
    """The properties in the content of a header frame; those that nobody sends are read by the library (`_decoding`)."""
    (flags,) = _FLAGS.unpack_from(header, _HEADER.size)
    if not flags & _UNUSUAL:
        try:
            return _usual(header, flags)
        except (_UnusualError, UnicodeDecodeError, IndexError, struct.error):
            pass
    read = ContentHeader()
    read.unmarshal(header)
    return read.properties


class _UnusualError(Exception):
    """A header that is no text."""


def _usual(raw: bytes, flags: int) -> Basic.Properties:
    found, at = Basic.Properties(), _HEADER.size + _FLAGS.size
    if flags & _CONTENT_TYPE:
        found.content_type, at = _short(raw, at)
    if flags & _ENCODING:
        found.content_encoding, at = _short(raw, at)
    if flags & _HEADERS:
        end = at + 4 + _SIZE.unpack_from(raw, at)[0]
        found.headers, at = _texts(raw, at + 4, end), end
    if flags & _MODE:
        found.delivery_mode, at = raw[at], at + 1
    if flags & _PRIORITY:
        found.priority, at = raw[at], at + 1
    if flags & _CORRELATION:
        found.correlation_id, at = _short(raw, at)
    if flags & _MESSAGE_ID:
        found.message_id, at = _short(raw, at)
    return found


def _texts(raw: bytes, at: int, end: int) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    while at < end:
        start = at + 1 + raw[at]
        if raw[start] != _LONG_TEXT:
            raise _UnusualError
        value = start + 5
        stop = value + _SIZE.unpack_from(raw, start + 1)[0]
        headers[raw[at + 1 : start].decode()] = raw[value:stop].decode()
        at = stop
    if at != end:
        raise _UnusualError
    return headers


def _short(raw: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + raw[at]
    return raw[at + 1 : end].decode(), end


def _any_short(raw: bytes, at: int) -> tuple[str, int]:
    """Also of what is no UTF-8: a publisher's key may be any bytes."""
    end = at + 1 + raw[at]
    return raw[at + 1 : end].decode("utf-8", "replace"), end


def properties(content_type: str, headers: Mapping[str, str], message_id: str, unix_s: int) -> bytes:
    """Properties of a persistent message, as they lie in its header frame."""
    fields = b"".join([_short_bytes(name) + b"S" + _long_bytes(value) for name, value in headers.items()])
    return b"".join(
        (
            _FLAGS.pack(_CONTENT_TYPE | _HEADERS | _MODE | _MESSAGE_ID | _TIMESTAMP),
            _short_bytes(content_type),
            _SIZE.pack(len(fields)),
            fields,
            b"\x02",
            _short_bytes(message_id),
            unix_s.to_bytes(8, "big"),
        )
    )


def publish(channel: int, exchange: str, key: str, about: bytes, body: bytes, *, mandatory: bool, room: int) -> bytes:
    """The frames of a message with the properties `about`; `room` is how much of its body fits into one."""
    method = _PUBLISH + _short_bytes(exchange) + _short_bytes(key) + bytes((mandatory,))
    header = _HEADER.pack(_BASIC, 0, len(body)) + about
    parts = [body] if 0 < len(body) <= room else [body[start : start + room] for start in range(0, len(body), room)]
    return b"".join(
        (_frame(METHOD, channel, method), _frame(HEADER, channel, header), *(_frame(BODY, channel, part) for part in parts))
    )


def ack(channel: int, tag: int) -> bytes:
    """The frame that acknowledges one message."""
    return _frame(METHOD, channel, METHOD_ID.pack(ACK) + _TAG.pack(tag, 0))


def _frame(kind: int, channel: int, content: bytes) -> bytes:
    return START.pack(kind, channel, len(content)) + content + b"\xce"


def _short_bytes(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw  # ValueError: it is longer than 255 bytes


def _long_bytes(text: str) -> bytes:
    raw = text.encode()
    return _SIZE.pack(len(raw)) + raw
