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
MESSAGES_PER_CALL = 20_000  # a script with more would block Redis for too long


class LakeQueue(NamedTuple):
    """A queue's state in the lake."""

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
        for some in _in_flushes(piece for each in queues for piece in _pieces(each)):
            total += self._flush(some, now_ms)
        return total

    def prune(self, client_ids: Iterable[str], before_ms: int, now_ms: int) -> int:
        """Remove acknowledged messages written before `before_ms` (Unix ms); returns the number of messages."""
        gone = 0
        left = iter(client_ids)
        while some := list(islice(left, QUEUES_PER_FLUSH)):
            replies = self._ask([(each, Prune(before_ms)) for each in some], now_ms)
            gone += sum(reply for reply in replies if not is_corrupt(reply))
        return gone

    def expire(self, queues: Iterable[tuple[str, Sequence[int]]], now_ms: int) -> Iterator[tuple[str, int]]:
        """End pending messages (client id, seqs) that are past their retention, and yield those that expired.

        Lazy: messages end as the result is consumed; calling it again yields the same ones. A message in flight or acknowledged
        does not expire, nor does any message of a queue with corrupt keys.
        """
        left = iter(queues)
        while some := list(islice(left, QUEUES_PER_FLUSH)):
            replies = self._ask([(client_id, Expire(seqs)) for client_id, seqs in some], now_ms)
            for (client_id, _), reply in zip(some, replies, strict=True):
                if not is_corrupt(reply):
                    yield from ((client_id, seq) for seq in reply)

    def erase(self, client_id: str, before: int) -> int:
        """Remove everything of a queue that was accepted before this seq; returns the number of messages."""
        (gone,) = self._ask([(client_id, Erase(before))], 0, tolerant=False)
        return int(gone)

    def read(self, client_ids: Iterable[str]) -> Iterator[tuple[str, ReadReply | None]]:
        """Yield each client id with its queue in Redis, or with None if a key has a wrong type."""
        left = iter(client_ids)
        while some := list(islice(left, QUEUES_PER_FLUSH)):
            for client_id, reply in zip(some, self._ask([(each, Read()) for each in some], 0), strict=True):
                yield client_id, None if is_corrupt(reply) else self._rest(client_id, reply)

    def read_one(self, client_id: str) -> ReadReply:
        """Read one queue from Redis.

        Raises:
            redis.ResponseError: a key has a wrong type.
        """
        (reply,) = self._ask([(client_id, Read())], 0, tolerant=False)
        return self._rest(client_id, reply)

    def _rest(self, client_id: str, reply: ReadReply) -> ReadReply:
        """Complete a queue of which `reply` has the first keys. Position and epoch are those of the last call."""
        newest = {message.key: message for message in reply.messages}
        while reply.cursor:
            (reply,) = self._ask([(client_id, Read(reply.cursor))], 0, tolerant=False)
            for message in reply.messages:
                if message.key not in newest or newest[message.key].seq <= message.seq:
                    newest[message.key] = message
        return reply._replace(messages=tuple(sorted(newest.values(), key=lambda message: message.seq)))

    def _flush(self, some: list[LakeQueue], now_ms: int) -> LoadResult:
        names = dict.fromkeys(each.client_id for each in some)
        result = LoadResult(owners=len(names), offered=sum(len(each.load.messages) for each in some))
        ready: dict[str, None] = {}  # an ordered set, since a queue may have come in several calls
        replies = self._ask([(each.client_id, each.load) for each in some], now_ms)
        for each, reply in zip(some, replies, strict=True):
            if is_corrupt(reply):
                result.spoilt.append(each.client_id)
                continue
            result.queued += reply.queued
            if reply.word == "ready":
                ready[ecq_queue(each.client_id)] = None
        self._wake(ready)
        return result

    def _ask(self, verbs: Iterable[tuple[str, Verb]], now_ms: int, *, tolerant: bool = True) -> list[Any]:
        return self._run(((ecq_queue(Owner(each)), verb) for each, verb in verbs), now_ms, tolerant=tolerant)


def _pieces(each: LakeQueue) -> Iterator[LakeQueue]:
    """Split a queue with very many live messages into several calls; the last one moves epoch and position."""
    load, messages = each.load, each.load.messages
    if len(messages) <= MESSAGES_PER_CALL:
        yield each
        return
    for start in range(0, len(messages), MESSAGES_PER_CALL):
        some: list[LiveMessage] = list(messages[start : start + MESSAGES_PER_CALL])
        is_last = start + MESSAGES_PER_CALL >= len(messages)
        yield LakeQueue(each.client_id, Load(load.epoch, load.acked_seq, load.acked_at_ms, some, is_last))


def _in_flushes(queues: Iterable[LakeQueue]) -> Iterator[list[LakeQueue]]:
    some: list[LakeQueue] = []
    messages = 0
    for each in queues:
        if some and (len(some) == QUEUES_PER_FLUSH or messages + len(each.load.messages) > MESSAGES_PER_FLUSH):
            yield some
            some, messages = [], 0
        some.append(each)
        messages += len(each.load.messages)
    if some:
        yield some
