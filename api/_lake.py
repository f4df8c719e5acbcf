"""Runs reads of the lake or the archive in a bounded pool of threads, with a time limit. The lake may be away."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from redis.exceptions import RedisError

from adapters.lake import open_catalog
from api._metrics import LOOKUPS
from contracts.errors import ManifoldError, Retryable
from contracts.settings import Settings
from contracts.tables import SEGMENTS

THREADS = 4
MOST = 64  # questions at once, those that wait for a thread among them
LOOK_S, LOOK_AGAIN_S = 15.0, 1.0  # between two looks whether the lake can be read; while it cannot
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Lake:
    """The catalog, opened once, and the threads in which it is read."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = "the lake has not been looked at yet"
        self._settings = settings
        self._catalog: Catalog | None = None
        self._pool = ThreadPoolExecutor(THREADS, "lake")
        self._asked: set[Future[Any]] = set()

    def close(self) -> None:
        """Close without waiting for reads that are under way: their answers are not needed any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def ask(self, question: Callable[[Catalog], T], within_s: float | None = None) -> T:
        """What `question` finds, in a thread.

        Raises:
            Retryable: the lake cannot be read, too many ask, or the answer takes longer than `api_timeout_seconds`.
            Permanent: what the lake says is for good, such as a login that is refused.
        """
        if len(self._asked) >= MOST:
            raise Retryable(f"{MOST} questions to the lake wait already; ask again later")
        within_s = within_s or self._settings.api_timeout_seconds
        future = self._pool.submit(self._answer, question)
        self._asked.add(future)
        LOOKUPS.set(len(self._asked))
        future.add_done_callback(self._answered)  # a thread goes on after its time: it counts until it is free again
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as exc:
            raise Retryable(f"no answer within {within_s:g} s; ask for less, or again later") from exc

    async def watch(self) -> None:
        """See, again and again, whether the lake can be read."""
        while True:
            try:
                await self.ask(_look)
                self.problem = None
            except ManifoldError as exc:
                self.problem = str(exc)
            await asyncio.sleep(LOOK_S if self.problem is None else LOOK_AGAIN_S)

    def _answer(self, question: Callable[[Catalog], T]) -> T:
        try:
            if self._catalog is None:
                self._catalog = open_catalog(self._settings)
            return question(self._catalog)
        except (ManifoldError, RedisError):  # of something else that was asked, too
            raise
        except Exception as exc:  # catalog, storage and format each fail in their own way
            self._catalog = None
            log.warning("lake not readable", reason=repr(exc))
            raise Retryable(f"the lake cannot be read ({type(exc).__name__}); the log of the api has more") from exc

    def _answered(self, future: "Future[Any]") -> None:
        self._asked.discard(future)
        LOOKUPS.set(len(self._asked))


def _look(catalog: Catalog) -> None:
    try:
        catalog.load_table(SEGMENTS.identifier)
    except NoSuchTableError:  # nothing has been ingested yet
        return
