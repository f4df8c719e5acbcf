"""The recorder's reads of the lake: whether data is known, and which entries have ended.

The lake may be unavailable or empty.
"""

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
# Timeouts of a read of one row, and of a scan. The first exceeds the 30 s after which a file read gives up: if a slow lake
# counted as one that lacks the data, other bytes under the same data_id would be accepted.
ROW_TIMEOUT_S, SCAN_TIMEOUT_S = 60.0, 600.0
# How far a refresh reads back behind the previous one: data that was received before a refresh may be ingested after it.
OVERLAP = timedelta(days=1)
T = TypeVar("T")


class Lake:
    """Reads the lake in threads. Keeps a hash of each data_id in the lake, so that new data costs no lookup."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = None
        self.row_timeout_s = ROW_TIMEOUT_S
        self._lake = AsyncLake(settings, threads=THREADS, name="recorder-lake")
        self._hashes: set[int] | None = None  # None: not read yet
        self._read_until: datetime | None = None

    async def payload(self, data_id: str) -> bytes | None:
        """The payload of `data_id`; None if the lake does not have it, is unavailable, or takes longer than `row_timeout_s`."""
        if self._hashes is not None and hash(data_id) not in self._hashes:  # the lake did not have it at the last refresh
            return None
        return await self.ask(lambda catalog: read_payload(catalog, data_id), None, within_s=self.row_timeout_s)

    async def ended_since(self, instant: datetime) -> set[tuple[str, int]]:
        """The (vin, seq) of the entries accepted at or after `instant` that have ended according to the lake.

        Raises:
            Retryable: the lake cannot be read, so nobody knows which entries have ended.
        """
        ended = await self.ask(lambda catalog: read_ended(catalog, instant), None)
        if ended is None:
            raise Retryable(f"ended entries cannot be read from the lake: {self.problem}")
        return ended

    async def keep_fresh(self) -> None:
        """Refresh the known data_ids forever, to find data from other sources. The recorder's own data is in Redis."""
        while True:
            started = datetime.now(UTC)
            since = None if self._read_until is None else self._read_until - OVERLAP
            data_ids: list[str] | None = await self.ask(partial(read_data_ids, since=since), None)
            if data_ids is not None:  # None: the lake is unavailable, and the next refresh covers this time as well
                self._hashes = (self._hashes or set()) | {hash(data_id) for data_id in data_ids}
                self._read_until = started
            await asyncio.sleep(REFRESH_S)

    async def ask(self, query: Callable[[Catalog], T], default: T, *, within_s: float = SCAN_TIMEOUT_S) -> T:
        """Return the result of `query` on the lake, or `default` if the lake is unavailable or takes longer than `within_s`."""
        try:
            result = await self._lake.ask(query, within_s)
        except ManifoldError as exc:
            self.problem = str(exc)
            return default
        self.problem = None
        return result

    def close(self) -> None:
        """Let the threads end after their current read."""
        self._lake.close()
