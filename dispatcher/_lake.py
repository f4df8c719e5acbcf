"""Reads data and triggers that Redis has lost from the lake. It is slow: read in threads, and a miss once for each snapshot."""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from contracts.settings import Settings
from contracts.tables import DATA, ECQ_PAYLOAD, IDS
from dispatcher._gathering import Gathering
from dispatcher._threads import Threads

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

READERS = 4  # of payloads, and as many of triggers; a look that is slow holds up one of them
TRIGGERS_AT_ONCE = 64
LOOK_S = 60  # for one piece, or one look for triggers: readers of files give up after 30 s; a peer that is dead never answers
MISSES_KEPT = 10_000
Key = TypeVar("Key")
Entry = tuple[str, int]  # owner and seq
Trigger = tuple[str, str]  # request_id and data_id

log = structlog.get_logger(__name__)


class Lake:
    """Reads single rows. A lake that is away, or hangs for `look_s`, counts as one without the row; the caller asks again later.

    Threads of a lake that hangs may go on; payloads and triggers have threads of their own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self.look_s = settings, float(LOOK_S)
        self._data_threads, self._trigger_threads = Threads(READERS, "dispatcher-data"), Threads(READERS, "dispatcher-triggers")
        self._catalog: Catalog | None = None
        self._lacks_data, self._lacks_triggers = _Misses[str](), _Misses[Entry]()
        self._asked: dict[Entry, asyncio.Future[Trigger | None]] = {}
        self._entries = Gathering[Entry]("lake.triggers", self._look_for, at_once=TRIGGERS_AT_ONCE, readers=READERS)

    async def payloads(self, data_ids: Sequence[str]) -> AsyncGenerator[dict[str, bytes | None], None]:
        """Yields the payloads of `data_ids` in pieces of a few MiB; None for one that the lake does not have.

        A data_id that is in no piece could not be read.
        """
        pieces = self._pieces(data_ids)
        while True:
            try:
                piece = await self._data_threads.run(self.look_s, next, pieces, None)
            except TimeoutError:
                log.warning("lake does not answer", table=DATA.name, seconds=self.look_s)
                return
            if piece is None:
                return
            yield piece

    async def trigger(self, owner: str, seq: int) -> Trigger | None:
        """(request_id, data_id) of an entry, the same for every entry of its trigger; None if the lake does not have it."""
        answer = self._asked.get((owner, seq))
        if answer is None:
            answer = self._asked[owner, seq] = asyncio.get_running_loop().create_future()
            self._entries.add((owner, seq))
        return await asyncio.shield(answer)

    async def ecq_messages(self, entries: Sequence[Entry]) -> dict[Entry, tuple[str, bytes]]:
        """Key and payload of those of `entries` (client id and seq) that the lake has."""
        try:
            return await self._data_threads.run(self.look_s, self._read_messages, entries)
        except TimeoutError:
            log.warning("lake does not answer", table=ECQ_PAYLOAD.name, seconds=self.look_s)
            return {}

    def close(self) -> None:
        """Let the threads end after their present read."""
        self._data_threads.close()
        self._trigger_threads.close()

    def _open(self) -> "Catalog":
        from adapters.lake import open_catalog  # here, because loading PyIceberg takes seconds that few runs need

        if self._catalog is None:
            self._catalog = open_catalog(self._settings)
        return self._catalog

    def _pieces(self, data_ids: Sequence[str]) -> Iterator[dict[str, bytes | None]]:
        try:
            from adapters.payloads import StoredPayloads

            stored = StoredPayloads(self._open())
            snapshot = stored.snapshot_id
            unknown = self._lacks_data.unknown(data_ids, snapshot)
            if len(unknown) < len(data_ids):
                yield dict.fromkeys(set(data_ids) - set(unknown))
            for piece in stored.pieces(unknown) if unknown else ():
                self._lacks_data.note((data_id for data_id, payload in piece.items() if payload is None), snapshot)
                yield piece
        except Exception:  # catalogs and object stores fail in many ways; none of them may stop deliveries
            log.exception("lake not readable", table=DATA.name)

    async def _look_for(self, entries: Sequence[Entry]) -> None:
        found: dict[Entry, Trigger] = {}  # filled by the thread, so that what it has found before it hangs is told
        try:
            await self._trigger_threads.run(self.look_s, self._read_triggers, entries, found)
        except TimeoutError:
            log.warning("lake does not answer", table=IDS.name, seconds=self.look_s)
        finally:
            for entry in entries:
                self._asked.pop(entry).set_result(found.get(entry))

    def _read_messages(self, entries: Sequence[Entry]) -> dict[Entry, tuple[str, bytes]]:
        try:
            from adapters.ecq_payloads import read_messages

            return {entry: (found.key, found.payload) for entry, found in read_messages(self._open(), entries).items()}
        except Exception:  # as above; one that nothing has been ingested into among them
            log.exception("lake not readable", table=ECQ_PAYLOAD.name)
            return {}

    def _read_triggers(self, entries: Sequence[Entry], found: dict[Entry, Trigger]) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        from adapters.lake_reads import read_trigger

        until = time.monotonic() + self.look_s
        try:
            catalog = self._open()
            snapshot = catalog.load_table(IDS.identifier).metadata.current_snapshot_id
        except NoSuchTableError:
            return  # nothing has been ingested yet
        except Exception:  # as above
            log.exception("lake not readable", table=IDS.name)
            return
        failed = 0
        for entry in self._lacks_triggers.unknown(entries, snapshot):
            if time.monotonic() > until:  # nobody waits for the rest any more
                break
            try:
                row = read_trigger(catalog, *entry)
            except Exception:  # as above; each by itself
                failed += 1
                if failed == 1:  # the others are mostly of the same file
                    log.exception("entry of the lake not readable", table=IDS.name, vin=entry[0], seq=entry[1])
                continue
            if row is not None:
                found[entry] = row
            else:
                self._lacks_triggers.note((entry,), snapshot)
        if failed > 1:
            log.warning("entries of the lake not readable", table=IDS.name, entries=failed)


class _Misses(Generic[Key]):
    """The keys that were missing in a table, each with the snapshot in which it was. Used by several threads."""

    def __init__(self) -> None:
        self._snapshots: dict[Key, int] = {}

    def unknown(self, keys: Collection[Key], snapshot: int | None) -> list[Key]:
        """The `keys` that were not missing in this snapshot."""
        return [key for key in keys if snapshot is None or self._snapshots.get(key) != snapshot]

    def note(self, keys: Iterable[Key], snapshot: int | None) -> None:
        """Note that `keys` are missing in this snapshot."""
        if len(self._snapshots) >= MISSES_KEPT:
            self._snapshots.clear()
        if snapshot is not None:
            self._snapshots |= dict.fromkeys(keys, snapshot)
