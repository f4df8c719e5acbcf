"""Reads properties that AMQP allows and the library cannot read, as far as possible.

A publisher may send a correlation id that is no text, a time beyond the calendar, headers as deep as a frame is long, or as many
as fit into one. The server passes all of that on. A client that fails on it loses its connection, receives the same message
again, and loses the next connection: it would never read the messages behind that one.
"""

from collections.abc import Callable
from typing import Any

from pamqp import decode

from manifold.signals._received import LEFT_OUT

MAX_HEADERS = 32 << 10  # bytes: for each entry the library copies all that follow, 0.4 s for the 128 KiB that a frame may have
_UNREADABLE = "headers that cannot be read"

_timestamp: Callable[[bytes], tuple[int, Any]] = decode.timestamp
_table: Callable[[bytes], tuple[int, Any]] = decode.field_table


def short_str(data: bytes) -> tuple[int, str]:
    """A text of 255 bytes at most; of what is no UTF-8, a `?` for each byte that is no ASCII, so that it stays as long."""
    end = data[0] + 1
    raw = bytes(data[1:end])
    try:
        return end, raw.decode()
    except UnicodeDecodeError:
        return end, raw.decode("ascii", "replace").replace("\ufffd", "?")


def timestamp(data: bytes) -> tuple[int, Any]:
    """A time, or None for one that no calendar has."""
    try:
        return _timestamp(data)
    except (ValueError, OverflowError, OSError):
        return 8, None


def table(data: bytes) -> tuple[int, Any]:
    """A table, or one header that says that the others are left out."""
    size = int.from_bytes(data[:4], "big")
    if size <= MAX_HEADERS:
        try:
            return _table(data)
        except (ValueError, OverflowError, OSError, RecursionError):
            pass
    return 4 + size, {LEFT_OUT: _UNREADABLE}


def read_any_properties() -> None:
    """From now on, every connection of this process reads whatever properties a message has. Calling it again changes nothing."""
    methods: Any = decode.METHODS
    methods.update(shortstr=short_str, timestamp=timestamp, table=table)
