"""Verbs that read a compacted queue: a scan of its live messages, or a page of them. They change nothing."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from manifold.queues._scripts import ECQ_SHARED_CODE, Script
from manifold.queues.verbs.verb import Verb, number


class QueuedMessage(NamedTuple):
    """A live message in Redis. `size_bytes` is the size of its payload; None if Redis lacks the payload."""

    key: str
    seq: int
    size_bytes: int | None
    is_delivered: bool


class ReadReply(NamedTuple):
    """Some live messages, oldest first, and the state of the queue. Unknown numbers are 0 or None."""

    acked_seq: int | None
    acked_at_ms: int | None
    epoch: int
    in_flight: int | None  # seq of the message in flight
    messages: tuple[QueuedMessage, ...]
    cursor: int = 0  # cursor of the next call; 0: all messages have been read
    expired_at_ms: int | None = None  # when a message last expired and left the queue


class Read(Verb, frozen=True):
    """Scan some live messages, in Redis's hash order, and read the state of the queue. Changes nothing."""

    cursor: int = 0
    count: int = 1000  # keys to scan, which takes a few milliseconds
    ecq_script = Script("ecq_read", prepends=ECQ_SHARED_CODE)

    @staticmethod
    def read(raw: Any) -> ReadReply:
        acked_seq, acked_at_ms, epoch, in_flight, cursor, flat_messages, expired_at_ms = raw
        messages = sorted(_messages(flat_messages), key=lambda message: message.seq)
        return ReadReply(
            acked_seq=number(acked_seq),
            acked_at_ms=number(acked_at_ms),
            epoch=int(epoch),
            in_flight=number(in_flight),
            messages=tuple(messages),
            cursor=int(cursor),
            expired_at_ms=number(expired_at_ms),
        )


class PageReply(NamedTuple):
    """A page of live messages, oldest first, and the state of the queue. Unknown numbers are 0 or None."""

    acked_seq: int | None
    acked_at_ms: int | None
    epoch: int
    in_flight: int | None  # seq of the message in flight
    last_seq: int | None  # the greatest seq in the queue
    has_more: bool
    messages: tuple[QueuedMessage, ...]  # if a size is None, the key is unknown, and the message may not be live
    expired_at_ms: int | None = None  # when a message last expired and left the queue


class ReadPage(Verb, frozen=True):
    """Read up to `limit` live messages with seqs greater than `after`, in seq order, and the state of the queue.

    Changes nothing.
    """

    after: int
    limit: int
    ecq_script = Script("ecq_page", prepends=ECQ_SHARED_CODE)

    @staticmethod
    def read(raw: Any) -> PageReply:
        acked_seq, acked_at_ms, epoch, in_flight, last_seq, has_more, flat_messages, expired_at_ms = raw
        return PageReply(
            acked_seq=number(acked_seq),
            acked_at_ms=number(acked_at_ms),
            epoch=int(epoch),
            in_flight=number(in_flight),
            last_seq=number(last_seq),
            has_more=has_more == b"1",
            messages=tuple(_messages(flat_messages)),
            expired_at_ms=number(expired_at_ms),
        )


def _messages(flat: Sequence[Any]) -> Iterable[QueuedMessage]:
    """Parse a flat list of key, seq, payload size and state of each message."""
    rows: Iterable[tuple[bytes, bytes, Any, bytes]] = zip(flat[0::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    return (QueuedMessage(key.decode(), int(seq), number(size), state == b"delivered") for key, seq, size, state in rows)
