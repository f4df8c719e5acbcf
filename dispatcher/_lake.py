"""The lake as the last place to look for data and triggers. Slow: asked off the loop, and not twice for the same snapshot."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import structlog

from contracts.settings import Settings
from contracts.tables import DATA, IDS, Table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

MISSES_KEPT = 10_000
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Lake:
    """Reads single rows. An unreachable lake counts as one that does not have the row: whoever asked will ask again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dispatcher-lake")
        self._catalog: Catalog | None = None
        self._misses: dict[object, int | None] = {}  # what was not in the table → the snapshot in which it was not

    async def data(self, data_id: str) -> bytes | None:
        """The payload of `data_id`."""
        return await self._ask(DATA, data_id, lambda lake, catalog: lake.read_data(catalog, data_id))

    async def trigger(self, owner: str, seq: int) -> tuple[str, str] | None:
        """request_id and data_id of one entry; every entry of a trigger has the same."""
        return await self._ask(IDS, seq, lambda lake, catalog: lake.read_trigger(catalog, owner, seq))

    def close(self) -> None:
        """Let the thread end after what it is reading."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, table: Table, what: object, read: "Callable[[ModuleType, Catalog], T | None]") -> T | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._look, table, what, read)

    def _look(self, table: Table, what: object, read: "Callable[[ModuleType, Catalog], T | None]") -> T | None:
        from pyiceberg.exceptions import NoSuchTableError  # here, because loading PyIceberg takes seconds that few runs need

        from adapters import lake

        try:
            if self._catalog is None:
                self._catalog = lake.open_catalog(self._settings)
            snapshot = self._catalog.load_table(table.identifier).metadata.current_snapshot_id
            if self._misses.get(what, 0) == snapshot:
                return None
            found = read(lake, self._catalog)
        except NoSuchTableError:
            return None  # nothing has been ingested yet
        except Exception:  # catalogs and object stores fail in many ways; none of them may stop deliveries
            log.exception("lake not readable", table=table.name)
            return None
        if found is None:
            if len(self._misses) >= MISSES_KEPT:
                self._misses.clear()
            self._misses[what] = snapshot
        return found
