"""Runs reads of lake and archive in a bounded thread pool, with a timeout. The lake may be unavailable."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from manifold.api._metrics import LOOKUPS
from manifold.contracts.errors import ManifoldError, Retryable
from manifold.contracts.tables import SEGMENTS
from manifold.lake.async_lake import AsyncLake
from manifold.settings import Settings

THREADS = 4
MAX_CONCURRENT_LOOKUPS = 64  # concurrent reads, including those that wait for a thread
CHECK_S, RECHECK_S = 15.0, 1.0  # seconds between checks whether the lake is readable: while it is, and while it is not
T = TypeVar("T")


class Lake:
    """The lake with bounded concurrency, and whether it is readable."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = "the lake has not been looked at yet"
        self._settings = settings
        self._lake = AsyncLake(settings, threads=THREADS, name="api-lake")
        self._places = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)

    def close(self) -> None:
        """Close without waiting for running reads."""
        self._lake.close()

    async def ask(self, question: Callable[[Catalog], T], within_s: float | None = None) -> T:
        """Run `question` in a thread and return its result.

        Raises:
            Retryable: the lake cannot be read, too many reads are waiting, or the read exceeds `api_timeout_seconds`.
            Permanent: an error of the lake that retrying cannot fix, such as a rejected login.
        """
        if self._places.locked():
            raise Retryable(f"{MAX_CONCURRENT_LOOKUPS} lake queries are already waiting; retry later")
        async with self._places:
            with LOOKUPS.track_inprogress():
                return await self._lake.ask(question, within_s or self._settings.api_timeout_seconds)

    async def watch(self) -> None:
        """Check periodically whether the lake is readable; sets `problem`."""
        while True:
            try:
                await self.ask(_check)
                self.problem = None
            except ManifoldError as exc:
                self.problem = str(exc)
            await asyncio.sleep(CHECK_S if self.problem is None else RECHECK_S)


def _check(catalog: Catalog) -> None:
    try:
        catalog.load_table(SEGMENTS.identifier)
    except NoSuchTableError:  # nothing ingested yet
        return
