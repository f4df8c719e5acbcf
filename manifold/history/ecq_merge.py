"""Merges a compacted queue from Redis, the archive and the lake.

If Redis is loaded, it decides which messages are live and their states; messages that it does not have yet are added from the
records. If it is not loaded or unavailable, the state is computed from the records, as in a rebuild
(`manifold.contracts.ecq_rows`).
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from redis import Redis

from manifold.archive.flush import close_segments
from manifold.contracts.ecq_rows import RecordedState
from manifold.contracts.outcomes import EntryState, Outcome
from manifold.history.ecq import CompactedQueue, LiveMessage, Page
from manifold.history.ecq_from_archive import RecordedQueue, read_recorded_queue
from manifold.history.ecq_from_queues import Queued, read_page, read_queue
from manifold.history.entry import instant_of
from manifold.history.from_archive import UNINGESTED_WINDOW
from manifold.history.lake_half import LakeHalf
from manifold.queues import Policy
from manifold.settings import Settings

if TYPE_CHECKING:
    from manifold.history.ecq_from_lake import QueueInLake


def compacted_queue(settings: Settings, redis: Redis, half: LakeHalf, client_id: str, page: Page) -> CompactedQueue:
    """Return a page of a client's queue. Archive and lake are only read if Redis is not sufficient.

    Raises:
        redis.RedisError: a key in Redis has the wrong type.
        Permanent, Retryable: archive or lake are needed and unreadable. An unavailable catalog raises its own errors.
    """
    policy = Policy.of(settings)
    pending_retention = settings.ecq_pending_retention
    if settings.direct_enqueue and (told := read_page(redis, policy, client_id, page, pending_retention)) is not None:
        return told
    close_segments(settings)  # flush the recorders' journals
    # Before the tables: segments may be read twice, never missed.
    ingested = half.local.ingested(datetime.now(UTC) - UNINGESTED_WINDOW)
    in_lake = half.local.compacted_queue(client_id)
    recorded = read_recorded_queue(settings, ingested, client_id)
    queued = read_queue(redis, policy, client_id)  # last, because it is the newest source
    found = page_of(merged(settings, client_id, queued, recorded, in_lake), page)
    unknown = {entry.seq for entry in found.entries if entry.size_bytes is None}
    sizes = half.local.sizes(client_id, unknown) if unknown else {}
    return replace(found, entries=[entry.sized(sizes.get(entry.seq)) for entry in found.entries])


def merged(
    settings: Settings, client_id: str, queued: Queued | None, recorded: RecordedQueue, in_lake: "QueueInLake"
) -> CompactedQueue:
    """Merge all sources, without acknowledged messages past their retention."""
    now, pending_retention = datetime.now(UTC), settings.ecq_pending_retention
    kept_from = now - timedelta(days=settings.ecq_retention_days)
    state = RecordedState(recorded.rows | in_lake.rows)
    newest: dict[str, int] = {}
    for seq, key in [*in_lake.writes.items(), *((seq, key) for seq, (key, _) in recorded.writes.items())]:
        newest[key] = max(seq, newest.get(key, 0))
    live: dict[str, LiveMessage] = {}
    for key, seq in newest.items():
        is_acknowledged = state.is_acknowledged(seq)
        size = recorded.writes[seq][1] if seq in recorded.writes else None
        message = LiveMessage(key, seq, size, Outcome.DELIVERED if is_acknowledged else EntryState.PENDING)
        if (expired_at := state.expired_at(seq)) is not None:
            live[key] = message.expired(expired_at)
        elif not is_acknowledged or message.ts >= kept_from:
            live[key] = message.aged(pending_retention, now)
    acked_seq, acked_at = state.acked_seq, state.acked_at
    if queued is not None and queued.is_loaded:
        for message in queued.messages(pending_retention):
            known = live.get(message.key)
            if known is None or known.seq < message.seq:
                live[message.key] = message
            elif known.seq == message.seq and state.expired_at(message.seq) is None:
                live[message.key] = message.sized(known.size_bytes)
        if queued.reply.acked_seq is not None:
            acked_seq, acked_at = queued.reply.acked_seq, instant_of(queued.reply.acked_at_ms)
    entries = sorted(live.values(), key=lambda message: message.seq)
    last_seq = _greatest(entries, acked_seq, in_lake.last_seq, *recorded.writes)
    return CompactedQueue(client_id, last_seq, acked_seq, acked_at, entries)


def page_of(queue: CompactedQueue, page: Page) -> CompactedQueue:
    """Return the requested part of a queue."""
    left = [entry for entry in queue.entries if entry.seq > page.after]
    if page.limit is None or len(left) <= page.limit:
        return replace(queue, entries=left)
    return replace(queue, entries=left[: page.limit], after=left[page.limit - 1].seq)


def _greatest(messages: list[LiveMessage], *others: int | None) -> int | None:
    known = [message.seq for message in messages] + [seq for seq in others if seq]
    return max(known, default=None)
