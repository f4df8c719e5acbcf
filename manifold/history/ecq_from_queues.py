"""Reads a compacted queue from Redis: live messages, their states, and whether Redis is complete."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from manifold.contracts import keys
from manifold.contracts.outcomes import EntryState, Outcome
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import wall_clock_ms
from manifold.history.ecq import CompactedQueue, LiveMessage, Page
from manifold.history.entry import instant_of
from manifold.queues import Batch, BlockingBatch, EcqLoader, Policy, is_cluster
from manifold.queues.verbs.ecq_reads import PageReply, QueuedMessage, ReadPage, ReadReply

MESSAGE_BATCH_SIZE = 1000  # messages per call
# Garbage collection removes an expired message from Redis. So for this long after an expiry, archive and lake are read too.
EXPIRY_SHOWN = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Queued:
    """A compacted queue as Redis has it."""

    is_loaded: bool  # whether Redis has all live messages; if not, a message that is not in Redis may still be live
    reply: ReadReply

    @property
    def is_sufficient(self) -> bool:
        """Whether Redis alone has the whole queue, so that archive and lake need not be read."""
        messages = self.reply.messages
        # An empty queue does not suffice: archive and lake may know messages that Redis has removed.
        has_all_sizes = bool(messages) and all(message.size_bytes is not None for message in messages)
        return self.is_loaded and has_all_sizes and not _is_recent_expiry(self.reply.expired_at_ms)

    def messages(self, pending_retention: timedelta | None) -> list[LiveMessage]:
        """Return all live messages, oldest first."""
        return _live(self.reply.messages, self.reply.in_flight, pending_retention)

    def queue(self, client_id: str, after: int, pending_retention: timedelta | None) -> CompactedQueue:
        """Return the queue from Redis alone, with the messages whose seq is greater than `after`."""
        messages = self.messages(pending_retention)
        acked_seq = self.reply.acked_seq
        known_seqs = [message.seq for message in messages]
        if acked_seq:
            known_seqs.append(acked_seq)
        last_seq = max(known_seqs, default=None)
        entries = [message for message in messages if message.seq > after]
        return CompactedQueue(client_id, last_seq, acked_seq, instant_of(self.reply.acked_at_ms), entries)


def add_page_commands(batch: Batch, client_id: str, page: Page, *, of_cluster: bool) -> None:
    """Add the commands for a page to a batch; parse their replies with `page_of_replies`."""
    limit = min(page.limit or MESSAGE_BATCH_SIZE, MESSAGE_BATCH_SIZE)
    batch.add(ecq_queue(client_id), ReadPage(page.after, limit), wall_clock_ms())
    for mark in keys.loaded_marks(of_cluster=of_cluster):
        batch.call(("GET", mark), lambda reply: reply)


def page_of_replies(replies: Sequence[Any], client_id: str, pending_retention: timedelta | None) -> CompactedQueue | None:
    """Build the page from the replies to the commands of `add_page_commands`. Return None if Redis alone is not sufficient."""
    reply: PageReply = replies[0]
    loaded_marks = replies[1:]
    # If a message's size is unknown, so is its key, and whether it is live. A queue without messages may be unknown to Redis.
    has_all_sizes = all(message.size_bytes is not None for message in reply.messages)
    is_complete = all(loaded_marks) and has_all_sizes and reply.last_seq is not None
    if not is_complete or _is_recent_expiry(reply.expired_at_ms):
        return None
    entries = _live(reply.messages, reply.in_flight, pending_retention)
    known_seqs = [seq for seq in (reply.last_seq, reply.acked_seq) if seq]  # a seq of 0: none
    last_seq = max(known_seqs, default=None)
    after = entries[-1].seq if reply.has_more else None
    return CompactedQueue(client_id, last_seq, reply.acked_seq, instant_of(reply.acked_at_ms), entries, after)


def read_page(
    redis: Redis, policy: Policy, client_id: str, page: Page, pending_retention: timedelta | None
) -> CompactedQueue | None:
    """Read a page of up to `MESSAGE_BATCH_SIZE` messages from Redis; without `page.limit`, read the whole queue.

    Return None if Redis is unavailable or does not have the whole page. The whole queue is read by key, so that each key is read
    once. (Read by seq, the queue of a fast writer would have no end, because each new write gets a higher seq.)

    Raises:
        redis.ResponseError: a key has the wrong type.
    """
    if page.limit is None:
        queued = read_queue(redis, policy, client_id)
        if queued is None or not queued.is_sufficient:
            return None
        return queued.queue(client_id, page.after, pending_retention)
    try:
        batch = BlockingBatch(redis, policy)
        add_page_commands(batch, client_id, page, of_cluster=is_cluster(redis))
        return page_of_replies(batch.run(), client_id, pending_retention)
    except AuthenticationError:  # derives from ConnectionError, but does not mean that Redis is unavailable
        raise
    except (RedisConnectionError, RedisTimeoutError):
        return None


def read_queue(redis: Redis, policy: Policy, client_id: str) -> Queued | None:
    """Read the whole queue from Redis. Return None if Redis is unavailable.

    Raises:
        redis.ResponseError: a key has the wrong type.
    """
    try:
        batch = BlockingBatch(redis, policy)
        for mark in keys.loaded_marks(of_cluster=is_cluster(redis)):
            batch.call(("GET", mark), lambda reply: reply)
        is_loaded = all(batch.run())
        return Queued(is_loaded, EcqLoader(redis, policy).read_one(client_id))
    except AuthenticationError:  # derives from ConnectionError, but does not mean that Redis is unavailable
        raise
    except (RedisConnectionError, RedisTimeoutError):
        return None


def _is_recent_expiry(expired_at_ms: int | None) -> bool:
    """Whether the queue's last expiry is so recent that the expired message is still shown. None: there was no expiry."""
    expired_at = instant_of(expired_at_ms)
    return expired_at is not None and datetime.now(UTC) - expired_at < EXPIRY_SHOWN


def _live(messages: Sequence[QueuedMessage], in_flight: int | None, pending_retention: timedelta | None) -> list[LiveMessage]:
    """Return messages in Redis as live messages with their states. `in_flight` is the seq of the message in flight, if any."""
    now = datetime.now(UTC)
    live: list[LiveMessage] = []
    for message in messages:
        state: str = EntryState.PENDING
        if message.seq == in_flight:
            state = EntryState.IN_FLIGHT
        elif message.is_delivered:
            state = Outcome.DELIVERED
        live_message = LiveMessage(message.key, message.seq, message.size_bytes, state)
        live.append(live_message.expired_if_overdue(pending_retention, now))
    return live
