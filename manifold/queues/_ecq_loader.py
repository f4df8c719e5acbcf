"""Bulk operations on compacted queues, over blocking Redis: many queues per round trip."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from manifold.contracts.names import Owner
from manifold.contracts.queue_names import ecq_queue
from manifold.queues._bulk import BulkQueues, LoadResult
from manifold.queues._corrupt_keys import is_corrupt
from manifold.queues.verbs.ecq import Erase, Expire, LiveMessage, Load, Prune
from manifold.queues.verbs.ecq_reads import Read, ReadReply
from manifold.queues.verbs.verb import Verb

QUEUES_PER_FLUSH = 500
MESSAGES_PER_FLUSH = 20_000
MESSAGES_PER_CALL = 20_000  # a script call with more messages would block Redis for too long


class LakeQueue(NamedTuple):
    """The state of a client's queue in the lake, or a part of its messages."""

    client_id: str
    load: Load


class EcqLoader(BulkQueues):
    """Loads, prunes, erases and reads compacted queues. `redis` must not decode responses.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command; everything may be offered again.
    """

    def load(self, queues: Iterable[LakeQueue], now_ms: int) -> LoadResult:
        """Load queues from the lake's state, and wake the dispatchers for clients that can receive something now."""
        total = LoadResult()
        parts = (part for queue in queues for part in _split(queue))
        for chunk in _in_chunks(parts):
            total += self._flush(chunk, now_ms)
        return total

    def prune(self, client_ids: Iterable[str], before_ms: int, now_ms: int) -> int:
        """Remove acknowledged messages written before `before_ms` (Unix ms); returns the number of removed messages."""
        removed = 0
        remaining = iter(client_ids)
        while chunk := list(islice(remaining, QUEUES_PER_FLUSH)):
            replies = self._run_verbs([(client_id, Prune(before_ms)) for client_id in chunk], now_ms)
            removed += sum(reply for reply in replies if not is_corrupt(reply))  # nothing was removed from a corrupt queue
        return removed

    def expire(self, queues: Iterable[tuple[str, Sequence[int]]], now_ms: int) -> Iterator[tuple[str, int]]:
        """End pending messages that are past their retention, and yield (client id, seq) of each that has expired.

        `queues` has the client ids, each with the seqs to end. The messages end only as the result is consumed. A repeated call
        yields the same. A message that is in flight or acknowledged does not expire, and neither does any message of a queue with
        corrupt keys.
        """
        remaining = iter(queues)
        while chunk := list(islice(remaining, QUEUES_PER_FLUSH)):
            replies = self._run_verbs([(client_id, Expire(seqs)) for client_id, seqs in chunk], now_ms)
            for (client_id, _), reply in zip(chunk, replies, strict=True):
                if not is_corrupt(reply):
                    yield from ((client_id, seq) for seq in reply)

    def erase(self, client_id: str, before: int) -> int:
        """Remove everything of a queue with a seq less than `before`; returns the number of removed messages."""
        (removed,) = self._run_verbs([(client_id, Erase(before))], now_ms=0, tolerant=False)
        return int(removed)

    def read(self, client_ids: Iterable[str]) -> Iterator[tuple[str, ReadReply | None]]:
        """Yield each client id with its queue in Redis, or with None if the queue has a corrupt key."""
        remaining = iter(client_ids)
        while chunk := list(islice(remaining, QUEUES_PER_FLUSH)):
            replies = self._run_verbs([(client_id, Read()) for client_id in chunk], now_ms=0)
            for client_id, reply in zip(chunk, replies, strict=True):
                yield client_id, None if is_corrupt(reply) else self._read_rest(client_id, reply)

    def read_one(self, client_id: str) -> ReadReply:
        """Read one queue from Redis.

        Raises:
            redis.ResponseError: a key has a wrong type.
        """
        (reply,) = self._run_verbs([(client_id, Read())], now_ms=0, tolerant=False)
        return self._read_rest(client_id, reply)

    def _read_rest(self, client_id: str, first: ReadReply) -> ReadReply:
        """Continue the scan of a queue that `first` began, and return the whole queue.

        Position and epoch are those that the last call has read. A key that changes during the scan may be read twice; its newer
        message counts.
        """
        newest = {message.key: message for message in first.messages}
        reply = first
        while reply.cursor:
            (reply,) = self._run_verbs([(client_id, Read(reply.cursor))], now_ms=0, tolerant=False)
            for message in reply.messages:
                known = newest.get(message.key)
                if known is None or known.seq <= message.seq:
                    newest[message.key] = message
        return reply._replace(messages=tuple(sorted(newest.values(), key=lambda message: message.seq)))

    def _flush(self, parts: list[LakeQueue], now_ms: int) -> LoadResult:
        """Load these parts of queues in one round trip, and wake the dispatchers for those that have something to claim."""
        client_ids = {part.client_id for part in parts}
        result = LoadResult(owners=len(client_ids), offered=sum(len(part.load.messages) for part in parts))
        ready: dict[str, None] = {}  # an ordered set, because a queue may have several parts
        replies = self._run_verbs([(part.client_id, part.load) for part in parts], now_ms)
        for part, reply in zip(parts, replies, strict=True):
            if is_corrupt(reply):
                result.spoilt.append(part.client_id)
                continue
            result.queued += reply.queued
            if reply.word == "ready":
                ready[ecq_queue(part.client_id)] = None
        self._wake(ready)
        return result

    def _run_verbs(self, verbs: Iterable[tuple[str, Verb]], now_ms: int, *, tolerant: bool = True) -> list[Any]:
        """Run each verb on the queue of its client id, and return the replies in order."""
        by_queue = ((ecq_queue(Owner(client_id)), verb) for client_id, verb in verbs)
        return self._run(by_queue, now_ms, tolerant=tolerant)


def _split(queue: LakeQueue) -> Iterator[LakeQueue]:
    """Split a queue with very many live messages into parts for several script calls.

    Only the call of the last part moves epoch and position.
    """
    load, messages = queue.load, queue.load.messages
    if len(messages) <= MESSAGES_PER_CALL:
        yield queue
        return
    for start in range(0, len(messages), MESSAGES_PER_CALL):
        end = start + MESSAGES_PER_CALL
        part: list[LiveMessage] = list(messages[start:end])
        is_last = end >= len(messages)
        yield LakeQueue(queue.client_id, Load(load.epoch, load.acked_seq, load.acked_at_ms, part, is_last))


def _in_chunks(queues: Iterable[LakeQueue]) -> Iterator[list[LakeQueue]]:
    """Group the queues for round trips, by `QUEUES_PER_FLUSH` and `MESSAGES_PER_FLUSH`."""
    chunk: list[LakeQueue] = []
    message_count = 0
    for queue in queues:
        is_full = len(chunk) == QUEUES_PER_FLUSH or message_count + len(queue.load.messages) > MESSAGES_PER_FLUSH
        if chunk and is_full:
            yield chunk
            chunk, message_count = [], 0
        chunk.append(queue)
        message_count += len(queue.load.messages)
    if chunk:
        yield chunk
