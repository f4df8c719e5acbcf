"""The triggers of a request_id, a page at a time: from the lake, from what is recorded and not in it yet, and from the queues."""

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from redis import Redis

from console._lives import Lives
from console._recorded import BACK, Recorded, flush, page_in_lake, read_recorded, triggers_recorded
from contracts.errors import Retryable
from contracts.lives import OPEN, Batch, Bounds, Life, Page
from contracts.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(slots=True)
class Found:
    """A page of triggers, oldest first, and the entries of those whose entries are few, as they are on record."""

    batches: list[Batch] = field(default_factory=list)
    before: int | None = None  # the next page has the triggers before this seq; None: there are no others
    lives: dict[int, list[Life]] = field(default_factory=dict)  # by seq
    archived: Set[int] = frozenset()  # of these triggers, those that only the archive has
    ingested: Set[str] = frozenset()  # segments that the lake has taken in lately


class Batches:
    """Answers questions about the triggers of a request_id, from all that is known now."""

    def __init__(self, settings: Settings, redis: Redis, request_id: str) -> None:
        self._settings, self._request_id = settings, request_id
        self._lives = Lives(settings, redis)
        self._catalog: Catalog | None = None

    def flush(self) -> None:
        """Have the newest triggers recorded where they are found.

        Raises:
            Retryable: a recorder cannot be asked for what it recorded last.
        """
        if not flush(self._settings):
            raise Retryable("the recorder cannot be asked to close its open segments; is the platform up? See `manifold status`")

    def shown(self, bounds: Bounds) -> tuple[list[Batch], int | None]:
        """A page of triggers with where their entries stand, and before which seq the next one begins.

        Entries beyond `bounds.entries` are not looked at one by one: what the lake does not know to have ended is `open`.
        """
        flush(self._settings)  # which vehicles a trigger names is told by the archive alone
        found = self.page(bounds)
        recorded = self.recorded(found, found.lives.keys())
        known = self._lives.now([life for lives in found.lives.values() for life in lives], recorded)
        states: dict[int, Counter[str]] = {seq: Counter() for seq in found.lives}
        for life in known:
            states[life.seq][str(life.state)] += 1
        return [replace(one, states=states.get(one.seq, one.states)) for one in found.batches], found.before

    def page(self, bounds: Bounds) -> Found:
        """The newest triggers within the bounds; nothing of it is asked of the queues."""
        in_lake, ingested = self._in_lake(bounds)
        known = {batch.seq: batch for batch in in_lake.batches}
        floor = bounds.since if in_lake.before is None else in_lake.before
        recorded = triggers_recorded(self._settings, ingested, self._request_id, replace(bounds, since=floor))
        archived = recorded.keys() - known.keys()  # of what has been published meanwhile, the lake has all
        known |= {seq: Batch(seq, t.data_id, t.vehicles, {OPEN: t.vehicles}) for seq, t in recorded.items() if seq in archived}
        seqs = sorted(known)[-bounds.limit :]
        batches = [known[seq] for seq in seqs]
        wanted = bounds.told(batches)
        lives: dict[int, list[Life]] = {seq: [] for seq in wanted}
        for life in [*in_lake.lives, *self._more(wanted - in_lake.told - archived)]:
            if life.seq in lives:
                lives[life.seq].append(life)
        for seq in wanted & archived:
            lives[seq] = list(self._of_archive(known[seq], recorded[seq].vins))
        before = seqs[0] if len(known) > len(seqs) else in_lake.before
        return Found(batches, before, lives, archived & set(seqs), ingested)

    def recorded(self, found: Found, seqs: Set[int]) -> Recorded:
        """How entries of these triggers ended, as far as only the archive knows."""
        return read_recorded(self._settings, found.ingested, seqs=seqs)

    def entries(self, found: Found, batch: Batch, vins: Set[str] = frozenset()) -> Iterator[Life]:
        """Every entry of a trigger (of `vins`, if there are any), as the lake knows it: one by one: there may be a million."""
        mine: Iterable[Life]
        if batch.seq in found.lives:
            mine = found.lives[batch.seq]
        elif batch.seq in found.archived:
            alone = Bounds(limit=1, entries=batch.vehicles, before=batch.seq + 1, since=batch.seq)
            again = triggers_recorded(self._settings, found.ingested, self._request_id, alone)
            mine = self._of_archive(batch, again[batch.seq].vins)
        else:
            mine = self._of_lake(batch, vins)
        return (life for life in mine if not vins or life.vin in vins)

    def _of_archive(self, batch: Batch, vins: Iterable[str]) -> Iterator[Life]:
        return (Life(vin, batch.seq, self._request_id, batch.data_id) for vin in vins)

    def _of_lake(self, batch: Batch, vins: Set[str]) -> Iterator[Life]:
        from adapters.batches import read_vehicles

        for vin, state in read_vehicles(self._open(), batch.seq, vins):
            yield Life(vin, batch.seq, self._request_id, batch.data_id, state)

    def _in_lake(self, bounds: Bounds) -> tuple[Page, Set[str]]:
        """From the recorder, which has the lake open; else read here."""
        since = datetime.now(UTC) - BACK
        told = page_in_lake(self._settings, since, self._request_id, bounds)
        if told is not None:
            return told
        from adapters.batches import read_page  # here, because loading it takes a second
        from adapters.lake import read_segments

        ingested = read_segments(self._open(), since)  # first: what is published meanwhile is then found twice, and not never
        return read_page(self._open(), self._request_id, bounds), ingested

    def _more(self, seqs: Set[int]) -> list[Life]:
        """Entries that are few enough to be told, and too many for a recorder to tell."""
        if not seqs:
            return []
        from adapters.lake import read_triggers

        return read_triggers(self._open(), seqs)

    def _open(self) -> "Catalog":
        if self._catalog is None:
            from adapters.lake import open_catalog

            self._catalog = open_catalog(self._settings)
        return self._catalog
