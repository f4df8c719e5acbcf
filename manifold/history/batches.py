"""The triggers of a request_id, a page at a time: from the lake, the segments not yet ingested, and the queues."""

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from redis import Redis

from manifold.archive.flush import close_segments
from manifold.contracts.errors import Retryable
from manifold.history.entry import OPEN, BatchHistory, BatchPage, Bounds, EntryHistory
from manifold.history.from_archive import UNINGESTED_WINDOW, RecordedInArchive, read_recorded, triggers_recorded
from manifold.history.from_queues import with_current_states
from manifold.history.lake_half import LakeHalf
from manifold.settings import Settings


@dataclass(slots=True)
class TriggerPage:
    """A page of triggers, oldest first, with the entries of the newest triggers, as far as the entry limit allows.

    The entries do not have their outcomes from the archive and their states in the queues yet.
    """

    batches: list[BatchHistory] = field(default_factory=list)
    before: int | None = None  # `before` of the next page; None: no older triggers
    entries: dict[int, list[EntryHistory]] = field(default_factory=dict)  # by seq of the trigger
    archived: Set[int] = frozenset()  # seqs of triggers that are only in the archive
    ingested: Set[str] = frozenset()  # paths of recently ingested segments


class Batches:
    """Queries the triggers of a request_id across all sources."""

    def __init__(self, settings: Settings, redis: Redis, lake_half: LakeHalf, request_id: str) -> None:
        self._settings = settings
        self._redis = redis
        self._lake_half = lake_half
        self._request_id = request_id

    def flush(self) -> None:
        """Make the recorders close their open segments, so that the newest triggers are found.

        Raises:
            Retryable: a recorder does not answer.
        """
        failures = close_segments(self._settings)
        if failures:
            raise Retryable("the recorder did not close its open segments; is the platform up? See `manifold status`")

    def page_with_states(self, bounds: Bounds) -> BatchPage:
        """Return the newest triggers within the bounds, with the states of their entries.

        Entries beyond `bounds.entries` are not looked up individually; if the lake has no outcome for them, they count as `open`.
        If a recorder does not answer, its most recent triggers may be missing.
        """
        close_segments(self._settings)  # the VINs of a recent trigger are only in the archive, once its segment is closed
        page = self.page(bounds)
        recorded = self.recorded(page, page.entries.keys())
        entries: list[EntryHistory] = []
        for entries_of_trigger in page.entries.values():
            entries += [recorded.with_outcome(entry) for entry in entries_of_trigger]
        current_entries = with_current_states(self._redis, entries, self._settings.retention_days)
        states: dict[int, Counter[str]] = {seq: Counter() for seq in page.entries}
        for entry in current_entries:
            states[entry.seq][str(entry.state)] += 1
        batches = [replace(batch, states=states.get(batch.seq, batch.states)) for batch in page.batches]
        return BatchPage(batches, page.before, current_entries, frozenset(states))

    def page(self, bounds: Bounds) -> TriggerPage:
        """Return the newest triggers within the bounds, without querying the queues."""
        in_lake, ingested = self._lake_half.batch_page(self._request_id, datetime.now(UTC) - UNINGESTED_WINDOW, bounds)
        known = {batch.seq: batch for batch in in_lake.batches}
        # Triggers before the lake's page belong to the next page, even if they are only in the archive.
        oldest_seq = bounds.since if in_lake.before is None else in_lake.before
        in_archive = triggers_recorded(self._settings, ingested, self._request_id, replace(bounds, since=oldest_seq))
        # A trigger whose segment was ingested during this query is found in both. It counts as in the lake.
        only_archived = in_archive.keys() - known.keys()
        for seq in only_archived:
            vehicles = in_archive[seq].vehicles
            known[seq] = BatchHistory(seq, in_archive[seq].data_id, vehicles, {OPEN: vehicles})
        page_seqs = sorted(known)[-bounds.limit :]
        batches = [known[seq] for seq in page_seqs]
        listed_seqs = bounds.within_entry_limit(batches)
        entries = self._entries_in_lake(in_lake, listed_seqs - only_archived)
        for seq in listed_seqs & only_archived:
            entries[seq] = list(self._entries_from_archive(known[seq], in_archive[seq].vins))
        before = page_seqs[0] if len(known) > len(page_seqs) else in_lake.before
        return TriggerPage(batches, before, entries, only_archived & set(page_seqs), ingested)

    def recorded(self, page: TriggerPage, seqs: Set[int]) -> RecordedInArchive:
        """Return the outcomes of these triggers' entries that are in the archive and not in the lake yet."""
        return read_recorded(self._settings, page.ingested, seqs=seqs)

    def entries(self, page: TriggerPage, batch: BatchHistory, vins: Set[str] = frozenset()) -> Iterator[EntryHistory]:
        """Yield the entries of a trigger; if `vins` is not empty, only those of these vehicles.

        As in `page`, outcomes from the archive and states in the queues are missing. The entries are read lazily, because a
        trigger may have a million.
        """
        entries: Iterable[EntryHistory]
        if batch.seq in page.entries:
            entries = page.entries[batch.seq]
        elif batch.seq in page.archived:
            only_this_trigger = Bounds(limit=1, entries=batch.vehicles, before=batch.seq + 1, since=batch.seq)
            triggers = triggers_recorded(self._settings, page.ingested, self._request_id, only_this_trigger)
            entries = self._entries_from_archive(batch, triggers[batch.seq].vins)
        else:
            entries = self._entries_from_lake(batch, vins)
        return (entry for entry in entries if not vins or entry.vin in vins)

    def _entries_in_lake(self, in_lake: BatchPage, seqs: Set[int]) -> dict[int, list[EntryHistory]]:
        """Return by seq the entries of these triggers: those of the lake's page, and the others read here.

        The API may list the entries of fewer triggers than the bounds of this query allow.
        """
        entries: dict[int, list[EntryHistory]] = {seq: [] for seq in seqs}
        unlisted_seqs = seqs - in_lake.complete_seqs
        unlisted_entries = self._lake_half.local.of_triggers(unlisted_seqs) if unlisted_seqs else []
        for entry in [*in_lake.entries, *unlisted_entries]:
            if entry.seq in entries:
                entries[entry.seq].append(entry)
        return entries

    def _entries_from_archive(self, batch: BatchHistory, vins: Iterable[str]) -> Iterator[EntryHistory]:
        return (EntryHistory(vin, batch.seq, self._request_id, batch.data_id) for vin in vins)

    def _entries_from_lake(self, batch: BatchHistory, vins: Set[str]) -> Iterator[EntryHistory]:
        for vin, state in self._lake_half.local.vehicles(batch.seq, vins):
            yield EntryHistory(vin, batch.seq, self._request_id, batch.data_id, state)
