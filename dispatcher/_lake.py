"""Reads data and triggers that Redis has lost from the lake.

The lake is slow. So reads run in threads, and the keys that the lake lacks are remembered until its table changes.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from dispatcher._coalescing import Coalescer
from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.errors import ManifoldError
from manifold.contracts.tables import DATA, ECQ_PAYLOAD, IDS, Table
from manifold.lake.async_lake import AsyncLake
from manifold.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

READERS = 4  # threads that read payloads, and as many that read triggers; a slow read blocks one of them
TRIGGER_BATCH_SIZE = 64
READ_TIMEOUT_S = 60  # for one piece of payloads or one batch of triggers; file reads give up after 30 s, other reads never
MAX_MISSES = 10_000  # missing keys that are remembered
Key = TypeVar("Key")
T = TypeVar("T")
Entry = tuple[str, int]  # owner and seq

log = structlog.get_logger(__name__)


class Lake:
    """Reads single rows. If the lake is unavailable, or takes longer than `timeout_s`, a row counts as missing for this read.

    A read that hangs keeps its thread. So payloads and triggers have separate threads.
    """

    def __init__(self, settings: Settings) -> None:
        self.timeout_s = float(READ_TIMEOUT_S)
        self._data = AsyncLake(settings, threads=READERS, name="dispatcher-data")
        self._triggers = AsyncLake(settings, threads=READERS, name="dispatcher-triggers")
        self._missing_data, self._missing_triggers = _Misses[str](), _Misses[Entry]()
        self._futures: dict[Entry, asyncio.Future[EntryTrigger | None]] = {}  # the requested triggers, by entry
        self._trigger_lookups = Coalescer[Entry](
            "lake.triggers", self._find_triggers, max_batch=TRIGGER_BATCH_SIZE, max_concurrent=READERS
        )

    async def payloads(self, data_ids: Sequence[str]) -> AsyncGenerator[dict[str, bytes | None], None]:
        """Yield the payloads of `data_ids` in pieces of a few MiB; None for a data_id that the lake does not have.

        A data_id that no piece contains could not be read.
        """
        pieces = await self._query(self._data, DATA, lambda catalog: self._pieces(catalog, data_ids), None)
        if pieces is None:  # the lake is unavailable
            return
        while True:
            piece = await self._query(self._data, DATA, lambda _: next(pieces, None), None)  # a thread reads the next piece
            if piece is None:  # there is no further piece, or the lake is unavailable
                return
            yield piece

    async def trigger(self, owner: str, seq: int) -> EntryTrigger | None:
        """Read the trigger of an entry; None if the lake does not have it or is unreadable.

        `seq` is that of the trigger and of all its entries. Each entry is a row of the table, found by `owner` and `seq`.
        """
        future = self._futures.get((owner, seq))
        if future is None:
            future = self._futures[owner, seq] = asyncio.get_running_loop().create_future()
            self._trigger_lookups.add((owner, seq))
        return await asyncio.shield(future)

    async def ecq_messages(self, entries: Sequence[Entry]) -> dict[Entry, tuple[str, bytes]]:
        """Read key and payload of those `entries` (client id and seq) that the lake has."""

        def read(catalog: "Catalog") -> dict[Entry, tuple[str, bytes]]:
            from manifold.lake.ecq_payloads import read_messages

            messages = read_messages(catalog, entries)
            return {entry: (message.key, message.payload) for entry, message in messages.items()}

        return await self._query(self._data, ECQ_PAYLOAD, read, {})

    def close(self) -> None:
        """Let the threads end after their current read."""
        self._data.close()
        self._triggers.close()

    async def _query(self, lake: AsyncLake, table: Table, query: "Callable[[Catalog], T]", default: T) -> T:
        """Return the result of `query`, or `default` if the lake is unavailable or too slow, so that deliveries continue."""
        try:
            return await lake.ask(query, self.timeout_s)
        except ManifoldError as exc:
            log.warning("lake not readable", table=table.name, reason=str(exc))
            return default

    def _pieces(self, catalog: "Catalog", data_ids: Sequence[str]) -> Iterator[dict[str, bytes | None]]:
        """Read payloads in pieces; the first piece has the data_ids that are known to be missing, if there are any."""
        from manifold.lake.payloads import StoredPayloads

        stored = StoredPayloads(catalog)
        snapshot = stored.snapshot_id
        sought = self._missing_data.without_misses(data_ids, snapshot)
        if len(sought) < len(data_ids):
            known_misses = set(data_ids) - set(sought)
            yield dict.fromkeys(known_misses)
        if not sought:
            return
        for piece in stored.pieces(sought):
            self._missing_data.remember((data_id for data_id, payload in piece.items() if payload is None), snapshot)
            yield piece

    async def _find_triggers(self, entries: Sequence[Entry]) -> None:
        """Read the triggers of these entries in a thread, and complete the futures of their requests."""
        triggers: dict[Entry, EntryTrigger] = {}  # the thread adds each trigger at once, so those before a timeout count
        try:
            await self._query(self._triggers, IDS, lambda catalog: self._read_triggers(catalog, entries, triggers), None)
        finally:
            for entry in entries:
                self._futures.pop(entry).set_result(triggers.get(entry))

    def _read_triggers(self, catalog: "Catalog", entries: Sequence[Entry], triggers: dict[Entry, EntryTrigger]) -> None:
        """Read the triggers of entries into `triggers`, until `timeout_s` is over. An unreadable one does not stop the others."""
        from pyiceberg.exceptions import NoSuchTableError

        from manifold.lake.reads import read_trigger

        deadline = time.monotonic() + self.timeout_s
        try:
            snapshot = catalog.load_table(IDS.identifier).metadata.current_snapshot_id
        except NoSuchTableError:
            return  # nothing has been ingested yet
        failed = 0
        for entry in self._missing_triggers.without_misses(entries, snapshot):
            if time.monotonic() > deadline:  # the caller has timed out
                break
            try:
                trigger = read_trigger(catalog, *entry)
            except Exception:  # catalogs and object stores fail in many ways; one entry's failure must not stop the others
                failed += 1
                if failed == 1:  # log only the first failure, because the others are mostly in the same file
                    log.exception("lake row unreadable", table=IDS.name, vin=entry[0], seq=entry[1])
                continue
            if trigger is not None:
                triggers[entry] = trigger
            else:
                self._missing_triggers.remember((entry,), snapshot)
        if failed > 1:
            log.warning("lake rows unreadable", table=IDS.name, entries=failed)


class _Misses(Generic[Key]):
    """Keys that a table lacks, each with the snapshot in which it was missing. Several threads use this class."""

    def __init__(self) -> None:
        self._snapshots: dict[Key, int] = {}

    def without_misses(self, keys: Collection[Key], snapshot: int | None) -> list[Key]:
        """Return those of `keys` that are not known to be missing in this snapshot; None is that of an empty table."""
        if snapshot is None:
            return list(keys)
        return [key for key in keys if self._snapshots.get(key) != snapshot]

    def remember(self, keys: Iterable[Key], snapshot: int | None) -> None:
        """Remember that `keys` are missing in this snapshot; nothing is remembered of an empty table, which has none."""
        if len(self._snapshots) >= MAX_MISSES:
            self._snapshots.clear()
        if snapshot is not None:
            self._snapshots |= dict.fromkeys(keys, snapshot)
