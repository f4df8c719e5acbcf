"""Private names of redis-py that the queues use. No other file of the package uses one.

redis-py writes through `asyncio.wait_for`, which before Python 3.12 can lose a cancellation (cpython issue 86296). It also awaits
each reply, which makes up most of the cost of a reply. So `_connection.py` writes to the stream and takes buffered replies
itself. Remove this file once Python 3.12 is the oldest supported version and redis-py's pipeline reads buffered replies without
a task each.
"""

from asyncio import StreamReader, StreamWriter
from typing import Any, cast

from redis._parsers.hiredis import NOT_ENOUGH_DATA as NOT_ENOUGH_DATA
from redis.asyncio.connection import AbstractConnection


def stream_reader(connection: AbstractConnection) -> StreamReader:
    """The stream reader of an open connection."""
    return cast(StreamReader, connection._reader)


def stream_writer(connection: AbstractConnection) -> StreamWriter:
    """The stream writer of an open connection."""
    return cast(StreamWriter, connection._writer)


def parser(connection: AbstractConnection) -> Any:
    """The hiredis parser of a connection."""
    return connection._parser


def buffered_reply(parser: Any) -> Any:
    """Remove and return the next buffered reply, or `NOT_ENOUGH_DATA` if none is complete. Redis errors are not raised."""
    return parser._reader.gets()
