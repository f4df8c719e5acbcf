"""Reads data and triggers that Redis has lost from the lake. Slow, so reads run in threads, and a miss is cached per snapshot."""

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

READERS = 4  # reader threads for payloads, and as many for triggers; a slow read blocks one of them
TRIGGER_BATCH_SIZE = 64
LOOK_S = 60  # timeout of one payload piece or trigger lookup: file reads give up after 30 s, but a dead peer never answers
MISSES_KEPT = 10_000
Key = TypeVar("Key")
T = TypeVar("T")
Entry = tuple[str, int]  # owner and seq

log = structlog.get_logger(__name__)


class Lake:
    """Reads single rows. If the lake is unavailable, or hangs for `look_s`, a row counts as missing; the caller retries later.

    Threads that hang in the lake may keep running; payloads and triggers have separate threads.
    """

    def __init__(self, settings: Settings) -> None:
        self.look_s = float(LOOK_S)
        self._data = AsyncLake(settings, threads=READERS, name="dispatcher-data")
        self._triggers = AsyncLake(settings, threads=READERS, name="dispatcher-triggers")
        self._lacks_data, self._lacks_triggers = _Misses[str](), _Misses[Entry]()
        self._asked: dict[Entry, asyncio.Future[EntryTrigger | None]] = {}
        self._entries = Coalescer[Entry](
            "lake.triggers", self._find_triggers, max_batch=TRIGGER_BATCH_SIZE, max_concurrent=READERS
        )

    async def payloads(self, data_ids: Sequence[str]) -> AsyncGenerator[dict[str, bytes | None], None]:
        """Yield the payloads of `data_ids` in pieces of a few MiB; None for those that the lake does not have.

        A data_id that is in no piece could not be read.
        """
        pieces = await self._ask(self._data, DATA, lambda catalog: self._pieces(catalog, data_ids), None)
        while pieces and (piece := await self._ask(self._data, DATA, lambda _: next(pieces, None), None)) is not None:
            yield piece

    async def trigger(self, owner: str, seq: int) -> EntryTrigger | None:
        """The trigger of an entry, the same for every entry of its trigger; None if the lake does not have it."""
        answer = self._asked.get((owner, seq))
        if answer is None:
            answer = self._asked[owner, seq] = asyncio.get_running_loop().create_future()
            self._entries.add((owner, seq))
        return await asyncio.shield(answer)

    async def ecq_messages(self, entries: Sequence[Entry]) -> dict[Entry, tuple[str, bytes]]:
        """Read key and payload of those `entries` (client id and seq) that the lake has."""

        def read(catalog: "Catalog") -> dict[Entry, tuple[str, bytes]]:
            from manifold.lake.ecq_payloads import read_messages

            return {entry: (found.key, found.payload) for entry, found in read_messages(catalog, entries).items()}

        return await self._ask(self._data, ECQ_PAYLOAD, read, {})

    def close(self) -> None:
        """Let the threads end after their current read."""
        self._data.close()
        self._triggers.close()

    async def _ask(self, lake: AsyncLake, table: Table, question: "Callable[[Catalog], T]", otherwise: T) -> T:
        try:
            return await lake.ask(question, self.look_s)
        except ManifoldError as exc:  # no failure of the lake may stop deliveries
            log.warning("lake not readable", table=table.name, reason=str(exc))
            return otherwise

    def _pieces(self, catalog: "Catalog", data_ids: Sequence[str]) -> Iterator[dict[str, bytes | None]]:
        from manifold.lake.payloads import StoredPayloads

        stored = StoredPayloads(catalog)
        snapshot = stored.snapshot_id
        unknown = self._lacks_data.unknown(data_ids, snapshot)
        if len(unknown) < len(data_ids):
            yield dict.fromkeys(set(data_ids) - set(unknown))
        for piece in stored.pieces(unknown) if unknown else ():
            self._lacks_data.note((data_id for data_id, payload in piece.items() if payload is None), snapshot)
            yield piece

    async def _find_triggers(self, entries: Sequence[Entry]) -> None:
        found: dict[Entry, EntryTrigger] = {}  # filled by the thread, so that rows found before a timeout count
        try:
            await self._ask(self._triggers, IDS, lambda catalog: self._read_triggers(catalog, entries, found), None)
        finally:
            for entry in entries:
                self._asked.pop(entry).set_result(found.get(entry))

    def _read_triggers(self, catalog: "Catalog", entries: Sequence[Entry], found: dict[Entry, EntryTrigger]) -> None:
        """Read the triggers of entries into `found` until `look_s` is over; an unreadable one does not stop the others."""
        from pyiceberg.exceptions import NoSuchTableError

        from manifold.lake.reads import read_trigger

        until = time.monotonic() + self.look_s
        try:
            snapshot = catalog.load_table(IDS.identifier).metadata.current_snapshot_id
        except NoSuchTableError:
            return  # nothing has been ingested yet
        failed = 0
        for entry in self._lacks_triggers.unknown(entries, snapshot):
            if time.monotonic() > until:  # the caller has timed out
                break
            try:
                row = read_trigger(catalog, *entry)
            except Exception:  # catalogs and object stores fail in many ways; one entry's failure must not stop the others
                failed += 1
                if failed == 1:  # the others are mostly in the same file
                    log.exception("lake row unreadable", table=IDS.name, vin=entry[0], seq=entry[1])
                continue
            if row is not None:
                found[entry] = row
            else:
                self._lacks_triggers.note((entry,), snapshot)
        if failed > 1:
            log.warning("lake rows unreadable", table=IDS.name, entries=failed)


class _Misses(Generic[Key]):
    """Keys that are missing in a table, each with the snapshot in which it was missing. Used by several threads."""

    def __init__(self) -> None:
        self._snapshots: dict[Key, int] = {}

    def unknown(self, keys: Collection[Key], snapshot: int | None) -> list[Key]:
        """The `keys` that are not known to be missing in this snapshot."""
        return [key for key in keys if snapshot is None or self._snapshots.get(key) != snapshot]

    def note(self, keys: Iterable[Key], snapshot: int | None) -> None:
        """Note that `keys` are missing in this snapshot."""
        if len(self._snapshots) >= MISSES_KEPT:
            self._snapshots.clear()
        if snapshot is not None:
            self._snapshots |= dict.fromkeys(keys, snapshot)
