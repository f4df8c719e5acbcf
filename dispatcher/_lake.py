"""The lake as the last place to look for data and triggers. Slow: asked off the loop, and not twice for the same snapshot.

What is asked for while all readers are busy is read together by the next one that is free.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from contracts.settings import Settings
from contracts.tables import IDS, META, Table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

READERS = 4
ROWS_AT_ONCE = 64  # payloads of the largest size are 64 MiB then
MISSES_KEPT = 10_000
Key = TypeVar("Key", bound=object)
Row = TypeVar("Row")
Read = Callable[["Catalog", Collection[Key]], Mapping[Key, Row]]

log = structlog.get_logger(__name__)


class Lake:
    """Reads single rows. An unreachable lake counts as one that does not have the row: whoever asked will ask again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="dispatcher-lake")
        self._catalog: Catalog | None = None
        # A run's rows of `sdv_fanout_meta` are published after its payloads: what was missing is so until that table changes.
        self._data = _Rows(META, _read_payloads, self._open, self._threads)
        self._triggers = _Rows(IDS, _read_triggers, self._open, self._threads)

    async def data(self, data_id: str) -> bytes | None:
        """The payload of `data_id`."""
        return await self._data.get(data_id)

    async def trigger(self, owner: str, seq: int) -> tuple[str, str] | None:
        """request_id and data_id of one entry; every entry of a trigger has the same."""
        return await self._triggers.get((owner, seq))

    def close(self) -> None:
        """Let the threads end after what they are reading."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _open(self) -> "Catalog":
        from adapters.lake import open_catalog  # here, because loading PyIceberg takes seconds that few runs need

        if self._catalog is None:
            self._catalog = open_catalog(self._settings)
        return self._catalog


class _Rows(Generic[Key, Row]):
    """Rows of one table by their keys; `read` finds those of several keys. Misses are remembered with the table's snapshot."""

    def __init__(
        self, table: Table, read: Read[Key, Row], open_catalog: "Callable[[], Catalog]", threads: ThreadPoolExecutor
    ) -> None:
        self._table, self._read, self._open, self._threads = table, read, open_catalog, threads
        self._asked: dict[Key, asyncio.Future[Row | None]] = {}  # nobody reads these yet
        self._reading: dict[Key, asyncio.Future[Row | None]] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._misses: dict[Key, int | None] = {}  # what was not in the table → the snapshot in which it was not

    async def get(self, key: Key) -> Row | None:
        """The row of `key`; None if the lake does not have it or cannot be read."""
        answer = self._asked.get(key) or self._reading.get(key)
        if answer is None:
            answer = self._asked[key] = asyncio.get_running_loop().create_future()
            if len(self._readers) < READERS:
                reader = asyncio.create_task(self._answer(), name=f"dispatcher.lake.{self._table.name}")
                self._readers.add(reader)
                reader.add_done_callback(self._readers.discard)
        return await asyncio.shield(answer)

    async def _answer(self) -> None:
        """Read until nothing is asked for any more."""
        while self._asked:
            keys = list(islice(self._asked, ROWS_AT_ONCE))
            for key in keys:
                self._reading[key] = self._asked.pop(key)
            found: Mapping[Key, Row] = {}
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._threads, self._look, keys)
            finally:
                for key in keys:
                    self._reading.pop(key).set_result(found.get(key))

    def _look(self, keys: Collection[Key]) -> Mapping[Key, Row]:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            catalog = self._open()
            snapshot = catalog.load_table(self._table.identifier).metadata.current_snapshot_id
            unknown = [key for key in keys if self._misses.get(key, 0) != snapshot]
            found = self._read(catalog, unknown) if unknown else {}
        except NoSuchTableError:
            return {}  # nothing has been ingested yet
        except Exception:  # catalogs and object stores fail in many ways; none of them may stop deliveries
            log.exception("lake not readable", table=self._table.name)
            return {}
        if len(self._misses) >= MISSES_KEPT:
            self._misses.clear()
        self._misses |= dict.fromkeys((key for key in unknown if key not in found), snapshot)
        return found


def _read_payloads(catalog: "Catalog", data_ids: Collection[str]) -> Mapping[str, bytes]:
    from adapters.payloads import read_payloads

    return read_payloads(catalog, data_ids)


def _read_triggers(catalog: "Catalog", entries: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], tuple[str, str]]:
    from adapters.lake import read_trigger

    rows = ((entry, read_trigger(catalog, *entry)) for entry in entries)
    return {entry: row for entry, row in rows if row is not None}
