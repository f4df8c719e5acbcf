"""The triggers of a request_id, a page at a time: from the lake, the segments not yet ingested, and the queues."""

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain

from redis import Redis

from manifold.archive.flush import close_segments
from manifold.contracts.errors import Retryable
from manifold.history.entry import OPEN, BatchHistory, BatchPage, Bounds, EntryHistory
from manifold.history.from_archive import UNINGESTED_WINDOW, RecordedInArchive, read_recorded, triggers_recorded
from manifold.history.from_queues import with_current_states
from manifold.history.lake_half import LakeHalf
from manifold.settings import Settings


@dataclass(slots=True)
class Found:
    """A page of triggers, oldest first, with the recorded entries of triggers within the entry limit."""

    batches: list[BatchHistory] = field(default_factory=list)
    before: int | None = None  # `before` of the next page; None: no older triggers
    entries: dict[int, list[EntryHistory]] = field(default_factory=dict)  # by seq
    archived: Set[int] = frozenset()  # triggers found only in the archive
    ingested: Set[str] = frozenset()  # recently ingested segments


class Batches:
    """Queries the triggers of a request_id across all sources."""

    def __init__(self, settings: Settings, redis: Redis, half: LakeHalf, request_id: str) -> None:
        self._settings, self._redis, self._half, self._request_id = settings, redis, half, request_id

    def flush(self) -> None:
        """Make the recorders close their open segments, so that the newest triggers are found.

        Raises:
            Retryable: a recorder does not answer.
        """
        if close_segments(self._settings):
            raise Retryable("the recorder did not close its open segments; is the platform up? See `manifold status`")

    def shown(self, bounds: Bounds) -> BatchPage:
        """Return a page of triggers with the states of their entries.

        Entries beyond `bounds.entries` are not looked up individually; if the lake has no outcome for them, they count as `open`.
        """
        close_segments(self._settings)  # only the archive has the VINs of a recent trigger
        found = self.page(bounds)
        recorded = self.recorded(found, found.entries.keys())
        few = map(recorded.ended, chain.from_iterable(found.entries.values()))
        known = with_current_states(self._redis, few, self._settings.retention_days)
        states: dict[int, Counter[str]] = {seq: Counter() for seq in found.entries}
        for entry in known:
            states[entry.seq][str(entry.state)] += 1
        batches = [replace(one, states=states.get(one.seq, one.states)) for one in found.batches]
        return BatchPage(batches, found.before, known, frozenset(states))

    def page(self, bounds: Bounds) -> Found:
        """Return the newest triggers within the bounds, without querying the queues."""
        in_lake, ingested = self._half.batch_page(self._request_id, datetime.now(UTC) - UNINGESTED_WINDOW, bounds)
        known = {batch.seq: batch for batch in in_lake.batches}
        floor = bounds.since if in_lake.before is None else in_lake.before
        recorded = triggers_recorded(self._settings, ingested, self._request_id, replace(bounds, since=floor))
        archived = recorded.keys() - known.keys()  # segments ingested meanwhile are in the lake completely
        for seq in archived:
            known[seq] = BatchHistory(seq, recorded[seq].data_id, recorded[seq].vehicles, {OPEN: recorded[seq].vehicles})
        seqs = sorted(known)[-bounds.limit :]
        batches = [known[seq] for seq in seqs]
        wanted = bounds.within_entry_limit(batches)
        entries: dict[int, list[EntryHistory]] = {seq: [] for seq in wanted}
        for entry in [*in_lake.entries, *self._more(wanted - in_lake.complete_seqs - archived)]:
            if entry.seq in entries:
                entries[entry.seq].append(entry)
        for seq in wanted & archived:
            entries[seq] = list(self._entries_from_archive(known[seq], recorded[seq].vins))
        before = seqs[0] if len(known) > len(seqs) else in_lake.before
        return Found(batches, before, entries, archived & set(seqs), ingested)

    def recorded(self, found: Found, seqs: Set[int]) -> RecordedInArchive:
        """Return the outcomes of these triggers' entries that are not in the lake yet."""
        return read_recorded(self._settings, found.ingested, seqs=seqs)

    def entries(self, found: Found, batch: BatchHistory, vins: Set[str] = frozenset()) -> Iterator[EntryHistory]:
        """Yield every entry of a trigger (only `vins`, if given) as recorded; lazily, because there may be a million."""
        mine: Iterable[EntryHistory]
        if batch.seq in found.entries:
            mine = found.entries[batch.seq]
        elif batch.seq in found.archived:
            alone = Bounds(limit=1, entries=batch.vehicles, before=batch.seq + 1, since=batch.seq)
            triggers = triggers_recorded(self._settings, found.ingested, self._request_id, alone)
            mine = self._entries_from_archive(batch, triggers[batch.seq].vins)
        else:
            mine = self._entries_from_lake(batch, vins)
        return (entry for entry in mine if not vins or entry.vin in vins)

    def _entries_from_archive(self, batch: BatchHistory, vins: Iterable[str]) -> Iterator[EntryHistory]:
        return (EntryHistory(vin, batch.seq, self._request_id, batch.data_id) for vin in vins)

    def _entries_from_lake(self, batch: BatchHistory, vins: Set[str]) -> Iterator[EntryHistory]:
        for vin, state in self._half.local.vehicles(batch.seq, vins):
            yield EntryHistory(vin, batch.seq, self._request_id, batch.data_id, state)

    def _more(self, seqs: Set[int]) -> list[EntryHistory]:
        """Read entries that are within our limit, but above the API's."""
        return self._half.local.of_triggers(seqs) if seqs else []
