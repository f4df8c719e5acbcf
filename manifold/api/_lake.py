"""Reads lake and archive in a bounded thread pool, with a timeout, and watches whether the lake is readable."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
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
CHECK_INTERVAL_S = 15.0  # between checks whether the lake is readable
RECHECK_INTERVAL_S = 1.0  # the same while the lake is not readable
T = TypeVar("T")


class Lake:
    """The lake with bounded concurrency. `problem` says why the lake is not readable; None: it is readable."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = "the lake has not been looked at yet"
        self._settings = settings
        self._lake = AsyncLake(settings, threads=THREADS, name="api-lake")
        self._lookup_limit = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)

    def close(self) -> None:
        """Close without waiting for running reads."""
        self._lake.close()

    async def ask(self, read: Callable[[Catalog], T]) -> T:
        """Run `read` in a thread and return its result.

        Raises:
            Retryable: the lake cannot be read, too many reads are waiting, or the read takes over `api_timeout_seconds`.
            Permanent: an error of the lake that retrying cannot fix, such as a rejected login.
        """
        if self._lookup_limit.locked():
            raise Retryable(f"{MAX_CONCURRENT_LOOKUPS} lake queries are already waiting; retry later")
        async with self._lookup_limit:
            with LOOKUPS.track_inprogress():
                return await self._lake.ask(read, self._settings.api_timeout_seconds)

    async def watch(self) -> None:
        """Check periodically whether the lake is readable, and set `problem`."""
        while True:
            try:
                await self.ask(_require_readable)
                self.problem = None
            except ManifoldError as exc:
                self.problem = str(exc)
            await asyncio.sleep(CHECK_INTERVAL_S if self.problem is None else RECHECK_INTERVAL_S)


def _require_readable(catalog: Catalog) -> None:
    """Raise an error unless the lake is readable."""
    with suppress(NoSuchTableError):  # before the first ingest, a readable lake has no tables
        catalog.load_table(SEGMENTS.identifier)
