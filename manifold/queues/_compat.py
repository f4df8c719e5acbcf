"""Private names of redis-py that the queues use. No other file of the package uses one.

redis-py writes through `asyncio.wait_for`, which before Python 3.12 can lose a cancellation (cpython issue 86296), and awaits
each reply, which is most of what a reply costs. So `_connection.py` writes to the stream and takes buffered replies by itself.
Ends with Python 3.12 as the oldest version and a pipeline in redis-py that reads buffered replies without a task each.
"""

from asyncio import StreamReader, StreamWriter
from typing import Any, cast

from redis._parsers.hiredis import NOT_ENOUGH_DATA as NOT_ENOUGH_DATA
from redis.asyncio.connection import AbstractConnection


def stream_reader(connection: AbstractConnection) -> StreamReader:
    """The reader of a connected connection."""
    return cast(StreamReader, connection._reader)


def stream_writer(connection: AbstractConnection) -> StreamWriter:
    """The writer of a connected connection."""
    return cast(StreamWriter, connection._writer)


def parser(connection: AbstractConnection) -> Any:
    """The parser of a connection, over hiredis."""
    return connection._parser


def buffered_reply(parser: Any) -> Any:
    """The next reply that has been read already, or `NOT_ENOUGH_DATA`. Errors of Redis are returned, not raised."""
    return parser._reader.gets()
