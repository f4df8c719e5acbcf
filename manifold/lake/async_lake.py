"""Queries the lake in threads, for services whose event loop must not block: the lake may be unavailable or never answer."""

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
    """The catalog, opened by the first query and again after a failure, and threads that read it. For one event loop."""

    def __init__(self, settings: Settings, *, threads: int, name: str) -> None:
        self._settings = settings
        self._threads = Threads(threads, name)
        self._catalog: Catalog | None = None
        self._is_readable = True

    async def ask(self, question: "Callable[[Catalog], T]", within_s: float) -> T:
        """Run `question` in a thread. One that times out keeps running, and its thread serves others once it returns.

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
        """Put `question` to the catalog, in this thread; after a failure the catalog is opened again. Raises Retryable."""
        catalog = self._catalog  # read once, because another thread may reset it
        try:
            if catalog is None:
                from manifold.lake.catalog import open_catalog  # here, because loading PyIceberg takes seconds that few runs need

                catalog = self._catalog = open_catalog(self._settings)
            answer = question(catalog)
        except (ManifoldError, RedisError):
            raise
        except Exception as exc:  # catalog, storage and format each fail in their own way
            self._catalog = None
            if self._is_readable:  # once, not for each query
                log.warning("lake not readable", exc_info=exc)
            self._is_readable = False
            raise Retryable(f"the lake cannot be read ({type(exc).__name__}); the service's log has more") from exc
        self._is_readable = True
        return answer
