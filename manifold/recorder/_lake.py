"""The recorder's reads of the lake: whether data is known, and which entries have ended. The lake may be unavailable or empty."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from pyiceberg.catalog import Catalog

from manifold.contracts.errors import ManifoldError, Retryable
from manifold.lake.async_lake import AsyncLake
from manifold.lake.payloads import read_payload
from manifold.lake.reads import read_data_ids, read_ended
from manifold.settings import Settings

REFRESH_S = 60.0
THREADS = 4
# Timeouts; file reads give up after 30 s. If a slow lake counted as one without the data, the data would be replaced.
ROW_S, SCAN_S = 60.0, 600.0
OVERLAP = timedelta(days=1)  # data received this long before a refresh may be ingested after it
T = TypeVar("T")


class Lake:
    """Reads the lake in threads. Keeps a hash of each data_id in the lake, so that new data costs no lookup."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = None
        self.row_s = ROW_S
        self._lake = AsyncLake(settings, threads=THREADS, name="recorder-lake")
        self._hashes: set[int] | None = None  # None: not read yet
        self._read_until: datetime | None = None

    async def payload(self, data_id: str) -> bytes | None:
        """The payload of `data_id`; None if the lake does not have it, is unavailable, or hangs for `row_s`."""
        if self._hashes is not None and hash(data_id) not in self._hashes:
            return None
        return await self.ask(lambda catalog: read_payload(catalog, data_id), None, within_s=self.row_s)

    async def ended_since(self, instant: datetime) -> set[tuple[str, int]]:
        """(vin, seq) of entries accepted since `instant` that have ended according to the lake.

        Raises:
            Retryable: the lake cannot be read; assuming that nothing has ended would be a guess.
        """
        ended = await self.ask(lambda catalog: read_ended(catalog, instant), None)
        if ended is None:
            raise Retryable(f"ended entries cannot be read from the lake: {self.problem}")
        return ended

    async def keep_fresh(self) -> None:
        """Refresh the known data_ids forever. This finds data from other sources: the recorder's own data is in Redis."""
        while True:
            started = datetime.now(UTC)
            since = None if self._read_until is None else self._read_until - OVERLAP
            found: list[str] | None = await self.ask(partial(read_data_ids, since=since), None)
            if found is not None:
                self._hashes = (self._hashes or set()) | {hash(data_id) for data_id in found}
                self._read_until = started
            await asyncio.sleep(REFRESH_S)

    async def ask(self, question: Callable[[Catalog], T], otherwise: T, *, within_s: float = SCAN_S) -> T:
        """Return the result of `question` on the lake, or `otherwise` if the lake is unavailable or slower than `within_s`."""
        try:
            answer = await self._lake.ask(question, within_s)
        except ManifoldError as exc:
            self.problem = str(exc)
            return otherwise
        self.problem = None
        return answer

    def close(self) -> None:
        """Let the threads end after their current read."""
        self._lake.close()
