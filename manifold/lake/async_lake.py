"""Asks the lake in threads, for services, whose loop must not wait for it. The lake may be away, or may never answer."""

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
    """The catalog, opened with the first question and again after a failure, and threads that read it. For one loop."""

    def __init__(self, settings: Settings, *, threads: int, name: str) -> None:
        self._settings = settings
        self._threads = Threads(threads, name)
        self._catalog: Catalog | None = None
        self._is_readable = True

    async def ask(self, question: "Callable[[Catalog], T]", within_s: float) -> T:
        """What `question` finds. One that takes too long goes on, and its thread serves others when it comes back.

        Raises:
            Retryable: the lake cannot be read, or has not answered within so many seconds, with the wait for a free thread.
            Permanent: the catalog refuses the login, or the settings are wrong.
            ManifoldError, redis.RedisError: whatever else `question` raises of these.
        """
        try:
            return await self._threads.run(within_s, self._answer, question)
        except TimeoutError as exc:
            raise Retryable(f"the lake has not answered within {within_s:g} s; ask for less, or again later") from exc

    def close(self) -> None:
        """Let the threads end after their present question."""
        self._threads.close()

    def _answer(self, question: "Callable[[Catalog], T]") -> T:
        catalog = self._catalog  # which another thread may take away
        try:
            if catalog is None:
                from manifold.lake.catalog import open_catalog  # here, because loading PyIceberg takes seconds that few runs need

                catalog = self._catalog = open_catalog(self._settings)
            answer = question(catalog)
        except (ManifoldError, RedisError):
            raise
        except Exception as exc:  # catalog, storage and format each fail in their own way
            self._catalog = None
            if self._is_readable:  # once, and not for each question
                log.warning("lake not readable", exc_info=exc)
            self._is_readable = False
            raise Retryable(f"the lake cannot be read ({type(exc).__name__}); the service's log has more") from exc
        self._is_readable = True
        return answer
