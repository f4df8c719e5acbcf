"""Lenient reading of message properties that AMQP allows but aio-pika, or pamqp below it, cannot read.

A publisher may send a correlation id that is not UTF-8, a timestamp out of range, deeply nested headers, or as many headers as
fit into a frame. RabbitMQ forwards all of these. A client that fails to decode such a message loses its connection, gets the same
message redelivered, loses the next connection, and never reaches the messages behind it.
"""

from collections.abc import Callable
from typing import Any

from aio_pika import DeliveryMode
from aio_pika.message import decode_expiration
from pamqp import decode

from manifold.signals._received import LEFT_OUT

# Bytes of a header table that the door reads. pamqp copies the rest of the table for each entry, which would take 0.4 s for the
# 128 KiB that a frame can hold.
MAX_HEADERS = 32 << 10
_UNREADABLE = "headers that cannot be read"

_timestamp: Callable[[bytes], tuple[int, Any]] = decode.timestamp
_table: Callable[[bytes], tuple[int, Any]] = decode.field_table


def short_str(data: bytes) -> tuple[int, str]:
    """Decode a string of at most 255 bytes; if it is not UTF-8, replace each non-ASCII byte by `?`, which keeps the length."""
    end = data[0] + 1
    raw = bytes(data[1:end])
    try:
        return end, raw.decode()
    except UnicodeDecodeError:
        return end, raw.decode("ascii", "replace").replace("\ufffd", "?")


def timestamp(data: bytes) -> tuple[int, Any]:
    """Decode a timestamp; None if it is out of range."""
    try:
        return _timestamp(data)
    except (ValueError, OverflowError, OSError):
        return 8, None


def table(data: bytes) -> tuple[int, Any]:
    """Decode a header table. If decoding fails or the table is too large, return a table with one header that says so."""
    size = int.from_bytes(data[:4], "big")
    if size <= MAX_HEADERS:
        try:
            return _table(data)
        except (ValueError, OverflowError, OSError, RecursionError):
            pass
    return 4 + size, {LEFT_OUT: _UNREADABLE}


def expiration(text: str) -> float | None:
    """Return an expiration in seconds; None if it is not a number."""
    try:
        return float(text) / 1000
    except ValueError:
        return None


def accept_any_properties() -> None:
    """Patch pamqp and aio-pika to accept messages with any properties, in every connection of this process. Idempotent.

    aio-pika does not pass on a message with an unknown delivery mode or expiration. Such a message never reaches its consumer,
    and uses up a part of the prefetch. RabbitMQ checks the delivery mode and the expiration, but not in every version, and not
    for messages that arrive by AMQP 1.0.

    This patch can be removed when pamqp decodes short strings and timestamps as leniently as long strings (gmr/pamqp#40), and
    aio-pika passes on these messages.
    """
    methods: Any = decode.METHODS
    methods.update(shortstr=short_str, timestamp=timestamp, table=table)
    decode_expiration.register(str, expiration)
    modes: Any = DeliveryMode
    modes._missing_ = lambda _: DeliveryMode.NOT_PERSISTENT
