"""Verbs that read a compacted queue: a scan of its live messages, or a page of them. They change nothing."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from manifold.queues._scripts import ECQ_SHARED_CODE, Script
from manifold.queues.verbs.verb import Verb, number


class QueuedMessage(NamedTuple):
    """A live message in Redis; `size_bytes` is the size of its payload, None if Redis lacks the payload."""

    key: str
    seq: int
    size_bytes: int | None
    is_delivered: bool


class ReadReply(NamedTuple):
    """Some live messages, oldest first, and the state of the queue; 0 or None where unknown."""

    acked_seq: int | None
    acked_at_ms: int | None
    epoch: int
    in_flight: int | None
    messages: tuple[QueuedMessage, ...]
    cursor: int = 0  # of the next call; 0: this was the last
    expired_at_ms: int | None = None  # when a message last expired and left the queue


class Read(Verb, frozen=True):
    """Scan some live messages, in Redis's hash order, and read the state of the queue. Changes nothing."""

    cursor: int = 0
    count: int = 1000  # keys to scan, which takes a few milliseconds
    ecq_script = Script("ecq_read", prepends=ECQ_SHARED_CODE)

    @staticmethod
    def read(raw: Any) -> ReadReply:
        messages = sorted(_messages(raw[5]), key=lambda message: message.seq)
        return ReadReply(
            number(raw[0]), number(raw[1]), int(raw[2]), number(raw[3]), tuple(messages), int(raw[4]), number(raw[6])
        )


class PageReply(NamedTuple):
    """A page of live messages, oldest first, and the state of the queue; 0 or None where unknown."""

    acked_seq: int | None
    acked_at_ms: int | None
    epoch: int
    in_flight: int | None
    last_seq: int | None  # the greatest in the queue
    has_more: bool
    messages: tuple[QueuedMessage, ...]  # with size None, the key is unknown, and the message may not be live
    expired_at_ms: int | None = None  # as in ReadReply


class ReadPage(Verb, frozen=True):
    """Read the live messages after a seq, in seq order, and the state of the queue. Changes nothing."""

    after: int
    limit: int
    ecq_script = Script("ecq_page", prepends=ECQ_SHARED_CODE)

    @staticmethod
    def read(raw: Any) -> PageReply:
        state = number(raw[0]), number(raw[1]), int(raw[2]), number(raw[3])
        return PageReply(*state, number(raw[4]), raw[5] == b"1", tuple(_messages(raw[6])), number(raw[7]))


def _messages(flat: Sequence[Any]) -> Iterable[QueuedMessage]:
    parts: Iterable[tuple[bytes, bytes, Any, bytes]] = zip(*(flat[place::4] for place in range(4)), strict=True)
    return (QueuedMessage(key.decode(), int(seq), number(size), how == b"delivered") for key, seq, size, how in parts)
