"""Queries the lake in threads, for services whose event loop must not block while the lake is unavailable or slow."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import structlog
from redis.exceptions import RedisError

from manifold.contracts.errors import ManifoldError, Retryable
from manifold.runtime.threads import Threads
from manifold.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

T = TypeVar("T")

log = structlog.get_logger(__name__)


class AsyncLake:
    """A catalog and the threads that query it, for one event loop.

    The first query opens the catalog. After a failed query, the next one opens the catalog again.
    """

    def __init__(self, settings: Settings, *, threads: int, name: str) -> None:
        self._settings = settings
        self._threads = Threads(threads, name)
        self._catalog: Catalog | None = None
        self._is_readable = True

    async def ask(self, question: "Callable[[Catalog], T]", within_s: float) -> T:
        """Run `question` with the catalog in a thread, and return its result.

        A question that times out keeps running; its thread is free for other questions once it returns.

        Raises:
            Retryable: the lake cannot be read, or did not answer within `within_s` seconds, including the wait for a free thread.
            Permanent: the catalog refuses the login, or the settings are wrong.
            ManifoldError, redis.RedisError: raised by `question` itself.
        """
        try:
            return await self._threads.run(within_s, self._answer, question)
        except TimeoutError as exc:
            raise Retryable(f"the lake has not answered within {within_s:g} s; ask for less, or again later") from exc

    def close(self) -> None:
        """Let the threads end after their current query."""
        self._threads.close()

    def _answer(self, question: "Callable[[Catalog], T]") -> T:
        """Run `question` with the catalog in this thread.

        If the lake cannot be read, the catalog is forgotten, so that the next query opens it again.

        Raises:
            Retryable: the lake cannot be read.
            ManifoldError, redis.RedisError: raised by `open_catalog` or by `question`.
        """
        catalog = self._catalog  # read once, because another thread may reset it
        try:
            if catalog is None:
                from manifold.lake.catalog import open_catalog  # imported here: PyIceberg takes seconds to load, and few need it

                catalog = self._catalog = open_catalog(self._settings)
            answer = question(catalog)
        except (ManifoldError, RedisError):  # their messages name the remedy; the catalog is kept
            raise
        except Exception as exc:  # catalog, storage and file format raise many types
            self._catalog = None
            if self._is_readable:  # log only the first failure, not every failed query
                log.warning("lake not readable", exc_info=exc)
            self._is_readable = False
            raise Retryable(f"the lake cannot be read ({type(exc).__name__}); the service's log has more") from exc
        self._is_readable = True
        return answer
