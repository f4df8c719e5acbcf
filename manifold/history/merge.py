"""Merges queues, archive and lake into one result. Each source has its own module."""

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
from manifold.history.from_queues import ended_seqs, waiting_of, waiting_seqs, with_current_states, with_trigger_ids
from manifold.history.lake_half import LakeHalf
from manifold.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

WHOLE_QUEUE = Page()
BATCH_BOUNDS = Bounds()
VEHICLE_BOUNDS = Bounds(limit=100, rows=100_000_000)  # many rows, because a file contains few rows of any single vehicle


class History:
    """Queries about vehicles, batches and data. `catalog` is that of the open lake; `lake_half` says what happens without it.

    Raises, from every method:
        redis.RedisError: the queues cannot be read.
        Permanent: archive or lake have an unsupported format or version.
        Retryable: the archive cannot be read. An unavailable catalog raises its own errors.
    """

    def __init__(self, settings: Settings, redis: Redis, catalog: "Catalog | None" = None) -> None:
        self._settings = settings
        self._redis = redis
        self._lake_half = LakeHalf(settings, catalog)

    def vin(self, vin: str) -> list[EntryHistory]:
        """Return every entry of a vehicle, oldest first."""
        in_lake, ingested = self._lake_half.entries_of(vin, datetime.now(UTC) - UNINGESTED_WINDOW)
        entries, recorded = self._merged(vin, in_lake, ingested, bounds=None)
        return self._with_queue_states(entries.values(), recorded)

    def vin_page(self, vin: str, bounds: Bounds = VEHICLE_BOUNDS) -> VehiclePage:
        """Return the newest entries of a vehicle within the bounds, oldest first. The cost does not depend on older entries."""
        in_lake, ingested = self._lake_half.vehicle_page(vin, datetime.now(UTC) - UNINGESTED_WINDOW, bounds)
        # Entries before the lake's page belong to the next page, even if they are only in the queues or the archive.
        page_bounds = bounds if in_lake.before is None else replace(bounds, since=in_lake.before)
        entries, recorded = self._merged(vin, in_lake.entries, ingested, page_bounds)
        page_seqs = sorted(entries)[-bounds.limit :]
        page_entries = (entries[seq] for seq in page_seqs)
        before = page_seqs[0] if len(entries) > len(page_seqs) else in_lake.before
        return VehiclePage(self._with_queue_states(page_entries, recorded), before)

    def waiting(self, vin: str, count: int) -> tuple[int, list[EntryHistory]]:
        """Return the number of a vehicle's waiting entries, and the oldest `count` of them. Only the queues are read."""
        return waiting_of(self._redis, vin, count)

    def batches(self, request_id: str, bounds: Bounds = BATCH_BOUNDS) -> BatchPage:
        """Return the newest triggers of a request_id within the bounds, oldest first, with the states of their entries.

        Entries beyond `bounds.entries` are not looked up individually; if the lake has no outcome for them, they count as `OPEN`.
        """
        return self.of_request(request_id).page_with_states(bounds)

    def of_request(self, request_id: str) -> Batches:
        """Return a query object to iterate over the triggers of a request_id and their entries."""
        return Batches(self._settings, self._redis, self._lake_half, request_id)

    def compacted_queue(self, client_id: str, page: Page = WHOLE_QUEUE) -> CompactedQueue:
        """Return the live messages of a client's compacted queue, oldest first, and its position. Redis may be unavailable."""
        return compacted_queue(self._settings, self._redis, self._lake_half, client_id, page)

    def data(self, data_id: str) -> DataHistory | None:
        """Return the payload of `data_id` and when it was published, or None if no source has it."""
        payload = cast(bytes | None, self._redis.get(keys.data(data_id)))
        close_segments(self._settings)  # flush the recorders' journals
        # The list of ingested segments is read before the tables. So a segment may be read twice, but is never missed.
        ingested = self._lake_half.local.ingested(datetime.now(UTC) - UNINGESTED_WINDOW)
        in_lake = self._lake_half.local.data_seen(data_id)
        archived_payload, published_at = _payload_and_times(data_recorded(self._settings, ingested, data_id))
        # The bytes that came first count: those in the lake came before those that are only in the archive.
        if payload is None and in_lake is None:
            payload = archived_payload
        if payload is None:
            payload = self._lake_half.local.payload(data_id)
        if payload is None:
            return None
        times = published_at[sha1_hex(payload)]  # other bytes under this data_id do not count
        times_seen = len(times)
        if in_lake is not None:
            times_seen += in_lake["times_seen"]
            times += [in_lake["first_seen_at"], in_lake["last_seen_at"]]
        return DataHistory(payload, min(times, default=None), max(times, default=None), times_seen)

    def _merged(
        self, vin: str, in_lake: Iterable[EntryHistory], ingested: Set[str], bounds: Bounds | None
    ) -> tuple[dict[int, EntryHistory], RecordedInArchive]:
        """Return by seq a vehicle's entries from all sources, and its records in the archive that are not in the lake.

        With `bounds`, only entries within these seqs are returned.
        """
        seq_bounds = bounds or Bounds()
        entries = {entry.seq: entry for entry in in_lake}
        recorded = read_recorded(self._settings, ingested, vin=vin)
        with_outcome = {seq for owner, seq in recorded.outcomes if owner == vin}
        with_outcome |= {seq for seq, entry in entries.items() if not entry.is_open}
        ended = {seq for seq in ended_seqs(self._redis, vin) if seq_bounds.contains(seq)}
        if ended - with_outcome:  # these outcomes may still be in a recorder's journal: flush the journals and read again
            failures = close_segments(self._settings)
            if not failures:  # on a failure, these outcomes come from the queues, without times and attempts
                recorded = read_recorded(self._settings, ingested, vin=vin)
        for seq, trigger in recorded.triggers:
            if seq_bounds.contains(seq):
                entries.setdefault(seq, EntryHistory(vin, seq, trigger.request_id, trigger.data_id))
        waiting = {seq for seq in waiting_seqs(self._redis, vin, bounds) if seq_bounds.contains(seq)}
        # All other entries have triggers that are still in a recorder's journal; only the queues know them.
        only_queued = (ended | waiting) - entries.keys()
        entries |= {entry.seq: entry for entry in with_trigger_ids(self._redis, vin, only_queued)}
        return entries, recorded

    def _with_queue_states(self, entries: Iterable[EntryHistory], recorded: RecordedInArchive) -> list[EntryHistory]:
        """Return the entries with their outcomes from the archive, or else with their states in the queues."""
        with_outcomes = [recorded.with_outcome(entry) for entry in entries]
        return with_current_states(self._redis, with_outcomes, self._settings.retention_days)


def _payload_and_times(
    publishes: Iterable[tuple[int, datetime, bytes]],
) -> tuple[bytes | None, defaultdict[str, list[datetime]]]:
    """Return the payload with the lowest seq (None: no publish), and the times of all publishes by SHA-1 of their payload.

    `publishes` yields (seq, received at, payload). Only one payload is kept in memory.
    """
    first_seq: int | None = None
    first_payload: bytes | None = None
    times = defaultdict[str, list[datetime]](list)
    for seq, received_at, payload in publishes:
        times[sha1_hex(payload)].append(received_at)
        if first_seq is None or seq < first_seq:
            first_seq, first_payload = seq, payload
    return first_payload, times
