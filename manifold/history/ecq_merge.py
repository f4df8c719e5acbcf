"""Merges a compacted queue from Redis, the archive and the lake.

If Redis is loaded, Redis decides which messages are live and which states they have, and messages that are not in Redis yet are
added from archive and lake. If Redis is unavailable or not loaded, everything is computed from archive and lake, as in a rebuild
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


def compacted_queue(settings: Settings, redis: Redis, lake_half: LakeHalf, client_id: str, page: Page) -> CompactedQueue:
    """Return a page of a client's queue. Archive and lake are only read if Redis is not sufficient.

    Raises:
        redis.RedisError: a key in Redis has the wrong type.
        Permanent, Retryable: archive or lake are needed and unreadable. An unavailable catalog raises its own errors.
    """
    policy = Policy.of(settings)
    if settings.direct_enqueue:  # otherwise Redis has no recent writes, because only pipelines fill the queues
        redis_page = read_page(redis, policy, client_id, page, settings.ecq_pending_retention)
        if redis_page is not None:
            return redis_page
    close_segments(settings)  # flush the recorders' journals
    # The list of ingested segments is read before the tables. So a segment may be read twice, but is never missed.
    ingested = lake_half.local.ingested(datetime.now(UTC) - UNINGESTED_WINDOW)
    in_lake = lake_half.local.compacted_queue(client_id)
    recorded = read_recorded_queue(settings, ingested, client_id)
    queued = read_queue(redis, policy, client_id)  # last, because Redis is the newest source
    queue = page_of(merged(settings, client_id, queued, recorded, in_lake), page)
    unsized_seqs = {message.seq for message in queue.entries if message.size_bytes is None}
    sizes = lake_half.local.sizes(client_id, unsized_seqs) if unsized_seqs else {}
    entries = [message.with_size_if_unknown(sizes.get(message.seq)) for message in queue.entries]
    return replace(queue, entries=entries)


def merged(
    settings: Settings, client_id: str, queued: Queued | None, recorded: RecordedQueue, in_lake: "QueueInLake"
) -> CompactedQueue:
    """Merge all sources into the whole queue, without acknowledged messages past their retention."""
    pending_retention = settings.ecq_pending_retention
    state = RecordedState(recorded.rows | in_lake.rows)
    live = _live_on_record(settings, recorded, in_lake, state)
    acked_seq, acked_at = state.acked_seq, state.acked_at
    if queued is not None and queued.is_loaded:
        for message in queued.messages(pending_retention):
            on_record = live.get(message.key)
            if on_record is None or on_record.seq < message.seq:  # Redis has a newer message
                live[message.key] = message
            elif on_record.seq == message.seq and state.expired_at(message.seq) is None:
                # Of the same message, Redis has the newer state, and archive and lake may have the size.
                live[message.key] = message.with_size_if_unknown(on_record.size_bytes)
            # Otherwise archive and lake have a newer message, or the expiry of this one, and theirs stays.
        if queued.reply.acked_seq is not None:
            acked_seq, acked_at = queued.reply.acked_seq, instant_of(queued.reply.acked_at_ms)
    entries = sorted(live.values(), key=lambda message: message.seq)
    message_seqs = [message.seq for message in entries]
    known_seqs = [seq for seq in (acked_seq, in_lake.last_seq, *recorded.writes, *message_seqs) if seq]
    last_seq = max(known_seqs, default=None)
    return CompactedQueue(client_id, last_seq, acked_seq, acked_at, entries)


def _live_on_record(
    settings: Settings, recorded: RecordedQueue, in_lake: "QueueInLake", state: RecordedState
) -> dict[str, LiveMessage]:
    """Return by key the newest message in archive and lake, without acknowledged messages past their retention."""
    now = datetime.now(UTC)
    oldest_kept = now - timedelta(days=settings.ecq_retention_days)
    newest_seqs: dict[str, int] = {}
    for seq, key in in_lake.writes.items():
        newest_seqs[key] = max(seq, newest_seqs.get(key, 0))
    for seq, write in recorded.writes.items():
        newest_seqs[write.key] = max(seq, newest_seqs.get(write.key, 0))
    live: dict[str, LiveMessage] = {}
    for key, seq in newest_seqs.items():
        is_acknowledged = state.is_acknowledged(seq)
        size_bytes = recorded.writes[seq].size_bytes if seq in recorded.writes else None
        message = LiveMessage(key, seq, size_bytes, Outcome.DELIVERED if is_acknowledged else EntryState.PENDING)
        expired_at = state.expired_at(seq)
        if expired_at is not None:
            live[key] = message.as_expired(expired_at)
        elif not is_acknowledged or message.ts >= oldest_kept:
            live[key] = message.expired_if_overdue(settings.ecq_pending_retention, now)
    return live


def page_of(queue: CompactedQueue, page: Page) -> CompactedQueue:
    """Return the requested part of a queue."""
    remaining = [message for message in queue.entries if message.seq > page.after]
    if page.limit is None or len(remaining) <= page.limit:
        return replace(queue, entries=remaining)
    entries = remaining[: page.limit]
    return replace(queue, entries=entries, after=entries[-1].seq)
