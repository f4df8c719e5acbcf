"""Runs reads of the lake or the archive in a bounded pool of threads, with a time limit. The lake may be away."""

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
MAX_CONCURRENT_LOOKUPS = 64  # questions at once, those that wait for a thread among them
LOOK_S, LOOK_AGAIN_S = 15.0, 1.0  # between two looks whether the lake can be read; while it cannot
T = TypeVar("T")


class Lake:
    """The lake, of which only so much is asked at once, and whether it can be read."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = "the lake has not been looked at yet"
        self._settings = settings
        self._lake = AsyncLake(settings, threads=THREADS, name="api-lake")
        self._places = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)

    def close(self) -> None:
        """Close without waiting for reads that are under way: their answers are not needed any more."""
        self._lake.close()

    async def ask(self, question: Callable[[Catalog], T], within_s: float | None = None) -> T:
        """What `question` finds, in a thread.

        Raises:
            Retryable: the lake cannot be read, too many ask, or the answer takes longer than `api_timeout_seconds`.
            Permanent: what the lake says is for good, such as a login that is refused.
        """
        if self._places.locked():
            raise Retryable(f"{MAX_CONCURRENT_LOOKUPS} questions to the lake wait already; ask again later")
        async with self._places:
            with LOOKUPS.track_inprogress():
                return await self._lake.ask(question, within_s or self._settings.api_timeout_seconds)

    async def watch(self) -> None:
        """See, again and again, whether the lake can be read."""
        while True:
            try:
                await self.ask(_look)
                self.problem = None
            except ManifoldError as exc:
                self.problem = str(exc)
            await asyncio.sleep(LOOK_S if self.problem is None else LOOK_AGAIN_S)


def _look(catalog: Catalog) -> None:
    try:
        catalog.load_table(SEGMENTS.identifier)
    except NoSuchTableError:  # nothing has been ingested yet
        return
