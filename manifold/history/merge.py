"""Merges queues, archive and lake into one answer. Each source has its own module."""

from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from redis import Redis

from manifold.archive.flush import close_segments
from manifold.contracts import keys
from manifold.contracts.messages import sha1_hex
from manifold.history.batches import Batches
from manifold.history.ecq import CompactedQueue, Page
from manifold.history.ecq_merge import compacted_queue
from manifold.history.entry import BatchPage, Bounds, DataHistory, EntryHistory, VehiclePage
from manifold.history.from_archive import UNINGESTED_WINDOW, RecordedInArchive, data_recorded, read_recorded
from manifold.history.from_queues import done_seqs, waiting_of, waiting_seqs, with_current_states, with_trigger_ids
from manifold.history.lake_half import LakeHalf
from manifold.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

ALL = Page()
TRIGGERS, VEHICLE = Bounds(), Bounds(limit=100, rows=100_000_000)  # files contain few rows of any one vehicle


class History:
    """Queries about vehicles, batches and data. `catalog`: the open lake; None: see `lake_half`.

    Raises, from every method:
        redis.RedisError: the queues cannot be read.
        Permanent: archive or lake have an unsupported format or version.
        Retryable: the archive cannot be read. An unavailable catalog raises its own errors.
    """

    def __init__(self, settings: Settings, redis: Redis, catalog: "Catalog | None" = None) -> None:
        self._settings, self._redis = settings, redis
        self._half = LakeHalf(settings, catalog)

    def vin(self, vin: str) -> list[EntryHistory]:
        """Return every entry of a vehicle, oldest first."""
        entries, ingested = self._half.entries_of(vin, datetime.now(UTC) - UNINGESTED_WINDOW)
        known, recorded = self._merged(vin, entries, ingested, None)
        return self._with_queue_states(known.values(), recorded)

    def vin_page(self, vin: str, bounds: Bounds = VEHICLE) -> VehiclePage:
        """Return the newest entries of a vehicle within the bounds, oldest first. The cost does not depend on older entries."""
        page, ingested = self._half.vehicle_page(vin, datetime.now(UTC) - UNINGESTED_WINDOW, bounds)
        within = bounds if page.before is None else replace(bounds, since=page.before)
        known, recorded = self._merged(vin, page.entries, ingested, within)
        seqs = sorted(known)[-bounds.limit :]
        before = seqs[0] if len(known) > len(seqs) else page.before
        return VehiclePage(self._with_queue_states((known[seq] for seq in seqs), recorded), before)

    def waiting(self, vin: str, count: int) -> tuple[int, list[EntryHistory]]:
        """Return the number of a vehicle's waiting entries, and the oldest `count` of them; reads the queues only."""
        return waiting_of(self._redis, vin, count)

    def batches(self, request_id: str, bounds: Bounds = TRIGGERS) -> BatchPage:
        """Return the newest triggers of a request_id within the bounds, oldest first, with the states of their entries.

        Entries beyond `bounds.entries` are not looked up individually; if the lake has no outcome for them, they count as `OPEN`.
        """
        return self.of_request(request_id).shown(bounds)

    def of_request(self, request_id: str) -> Batches:
        """Return a query object to iterate over the triggers of a request_id and their entries."""
        return Batches(self._settings, self._redis, self._half, request_id)

    def compacted_queue(self, client_id: str, page: Page = ALL) -> CompactedQueue:
        """Return the live messages of a client's compacted queue, oldest first, and its position. Redis may be unavailable."""
        return compacted_queue(self._settings, self._redis, self._half, client_id, page)

    def data(self, data_id: str) -> DataHistory | None:
        """Return what is known of `data_id`; None if nothing is."""
        payload = cast(bytes | None, self._redis.get(keys.data(data_id)))
        close_segments(self._settings)  # flush the recorders' journals
        ingested = self._half.local.ingested(datetime.now(UTC) - UNINGESTED_WINDOW)  # before the tables: read twice, never missed
        in_lake = self._half.local.data_seen(data_id)
        first, seen = _published(data_recorded(self._settings, ingested, data_id))
        if payload is None:
            payload = first if first is not None and in_lake is None else self._half.local.payload(data_id)
        if payload is None:
            return None
        instants = seen[sha1_hex(payload)]
        times = len(instants) + (in_lake["times_seen"] if in_lake else 0)
        instants += [in_lake["first_seen_at"], in_lake["last_seen_at"]] if in_lake else []
        return DataHistory(payload, min(instants, default=None), max(instants, default=None), times)

    def _merged(
        self, vin: str, in_lake: Iterable[EntryHistory], ingested: Set[str], bounds: Bounds | None
    ) -> tuple[dict[int, EntryHistory], RecordedInArchive]:
        """Return the entries known to any source (within the bounds) by seq, and the archive's records that the lake lacks."""
        within = bounds or Bounds()
        entries = {entry.seq: entry for entry in in_lake}
        recorded = read_recorded(self._settings, ingested, vin=vin)
        ended = {seq for owner, seq in recorded.outcomes if owner == vin} | {
            s for s, entry in entries.items() if not entry.is_open
        }
        done = {seq for seq in done_seqs(self._redis, vin) if within.since <= seq < within.before}
        if not done <= ended and not close_segments(self._settings):
            recorded = read_recorded(self._settings, ingested, vin=vin)  # the outcome was still in the recorder's journal
        for seq, trigger in recorded.triggers:
            if within.since <= seq < within.before:
                entries.setdefault(seq, EntryHistory(vin, seq, trigger.request_id, trigger.data_id))
        waiting = {seq for seq in waiting_seqs(self._redis, vin, bounds) if within.since <= seq < within.before}
        # The triggers of these entries are still in the recorder's journal.
        entries |= {entry.seq: entry for entry in with_trigger_ids(self._redis, vin, (done | waiting) - entries.keys())}
        return entries, recorded

    def _with_queue_states(self, entries: Iterable[EntryHistory], recorded: RecordedInArchive) -> list[EntryHistory]:
        return with_current_states(self._redis, map(recorded.ended, entries), self._settings.retention_days)


def _published(recorded: Iterable[tuple[int, datetime, bytes]]) -> tuple[bytes | None, defaultdict[str, list[datetime]]]:
    """Return the first payload, the only one kept, and the times of each publish by the payload's SHA-1."""
    first: tuple[int, bytes] | None = None
    seen = defaultdict[str, list[datetime]](list)
    for seq, received_at, payload in recorded:
        seen[sha1_hex(payload)].append(received_at)
        if first is None or seq < first[0]:
            first = seq, payload
    return None if first is None else first[1], seen
