"""The face for bulk work on compacted queues: many queues a flush, over blocking Redis."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from redis import Redis

from contracts import keys
from contracts.names import Owner
from contracts.queue_names import ecq_queue
from queues import _commands
from queues._drivers import BlockingBatch
from queues._loader import LoadResult
from queues._policy import Policy
from queues._spoilt import is_spoilt
from queues.verbs.ecq import Erase, LiveMessage, Load, Prune, Read, ReadReply
from queues.verbs.verb import Verb

QUEUES_A_FLUSH = 500
MESSAGES_A_FLUSH = 20_000
MESSAGES_A_CALL = 20_000  # a script that brings more would keep Redis from all others for long


class Loaded(NamedTuple):
    """A queue as the lake knows it."""

    client_id: str
    load: Load


class EcqLoader:
    """Loads compacted queues in bulk. `redis` must not decode responses.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses; everything may be offered again.
    """

    def __init__(self, redis: Redis, policy: Policy) -> None:
        self._redis, self._policy = redis, policy

    def load(self, queues: Iterable[Loaded], now_ms: int) -> LoadResult:
        """Bring in what the lake knows; wakes the dispatchers for clients that can have something now."""
        total = LoadResult()
        for some in _in_flushes(piece for each in queues for piece in _pieces(each)):
            total += self._flush(some, now_ms)
        return total

    def prune(self, client_ids: Iterable[str], before_ms: int, now_ms: int) -> int:
        """Let acknowledged messages go that were written before an instant (Unix ms); how many."""
        gone = 0
        left = iter(client_ids)
        while some := list(islice(left, QUEUES_A_FLUSH)):
            gone += sum(reply for reply in self._run([(each, Prune(before_ms)) for each in some], now_ms) if not is_spoilt(reply))
        return gone

    def erase(self, client_id: str, before: int) -> int:
        """Let everything of a queue go that was accepted before this seq; how many messages."""
        (gone,) = self._run([(client_id, Erase(before))], 0, tolerant=False)
        return int(gone)

    def read(self, client_ids: Iterable[str]) -> Iterator[tuple[str, ReadReply | None]]:
        """Each queue as Redis has it; None: a key of it holds another type than it should."""
        left = iter(client_ids)
        while some := list(islice(left, QUEUES_A_FLUSH)):
            for client_id, reply in zip(some, self._run([(each, Read()) for each in some], 0), strict=True):
                yield client_id, None if is_spoilt(reply) else self._rest(client_id, reply)

    def read_one(self, client_id: str) -> ReadReply:
        """A queue as Redis has it; a key of another type than it should be is an error."""
        (reply,) = self._run([(client_id, Read())], 0, tolerant=False)
        return self._rest(client_id, reply)

    def _rest(self, client_id: str, reply: ReadReply) -> ReadReply:
        """The whole queue, of which one call has brought the first of its keys: how it stands is what the last call says."""
        newest = {message.key: message for message in reply.messages}
        while reply.cursor:
            (reply,) = self._run([(client_id, Read(reply.cursor))], 0, tolerant=False)
            for message in reply.messages:
                if message.key not in newest or newest[message.key].seq <= message.seq:
                    newest[message.key] = message
        return reply._replace(messages=tuple(sorted(newest.values(), key=lambda message: message.seq)))

    def _flush(self, some: list[Loaded], now_ms: int) -> LoadResult:
        names = dict.fromkeys(each.client_id for each in some)
        result = LoadResult(owners=len(names), offered=sum(len(each.load.messages) for each in some))
        ready: dict[int, dict[str, None]] = {}
        for each, reply in zip(some, self._run([(each.client_id, each.load) for each in some], now_ms), strict=True):
            if is_spoilt(reply):
                result.spoilt.append(each.client_id)
                continue
            result.queued += reply.queued
            if reply.word == "ready":
                queue = ecq_queue(each.client_id)
                ready.setdefault(keys.shard_of(queue, self._policy.wake_shards), {})[queue] = None
        if ready:
            batch = BlockingBatch(self._redis, self._policy)
            for shard, queues in ready.items():
                batch.call(_commands.wake(shard, list(queues)), lambda reply: reply)
            batch.run()
        return result

    def _run(self, verbs: Iterable[tuple[str, Verb]], now_ms: int, *, tolerant: bool = True) -> list[Any]:
        batch = BlockingBatch(self._redis, self._policy)
        for client_id, verb in verbs:
            batch.add(ecq_queue(Owner(client_id)), verb, now_ms)
        return batch.run(tolerant=tolerant)


def _pieces(each: Loaded) -> Iterator[Loaded]:
    """A queue with very many live messages in several calls, of which the last one moves epoch and position."""
    load, messages = each.load, each.load.messages
    if len(messages) <= MESSAGES_A_CALL:
        yield each
        return
    for start in range(0, len(messages), MESSAGES_A_CALL):
        some: list[LiveMessage] = list(messages[start : start + MESSAGES_A_CALL])
        is_last = start + MESSAGES_A_CALL >= len(messages)
        yield Loaded(each.client_id, Load(load.epoch, load.acked_seq, load.acked_at_ms, some, is_last))


def _in_flushes(queues: Iterable[Loaded]) -> Iterator[list[Loaded]]:
    some: list[Loaded] = []
    messages = 0
    for each in queues:
        if some and (len(some) == QUEUES_A_FLUSH or messages + len(each.load.messages) > MESSAGES_A_FLUSH):
            yield some
            some, messages = [], 0
        some.append(each)
        messages += len(each.load.messages)
    if some:
        yield some
