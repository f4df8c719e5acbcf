"""Opens the data sources of the query commands: Redis alone, or the history. Each imports only what it needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from manifold.settings import Settings

if TYPE_CHECKING:
    from redis import Redis

    from manifold.history.merge import History


@contextmanager
def redis_of(settings: Settings) -> "Iterator[Redis]":
    """Open a blocking Redis client; it is closed at the end of the block."""
    from manifold.runtime.redis import connect

    with connect(settings.redis) as redis:
        yield redis


@contextmanager
def history_of(settings: Settings) -> "Iterator[History]":
    """Open the history of vehicles, batches, data and compacted queues; its Redis client is closed at the end of the block."""
    from manifold.history.merge import History

    with redis_of(settings) as redis:
        yield History(settings, redis)
