"""The direct enqueue of compacted queues: writes and rewinds in seq order, and acknowledgements that Redis has forgotten."""

from collections.abc import Iterable, Iterator, Sequence

from manifold.contracts import keys
from manifold.contracts.ecq import Append, EcqAck, Rewind
from manifold.contracts.errors import Retryable
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Queues, is_cluster, is_corrupt, why_not_loaded
from manifold.queues.verbs import ecq as verbs
from manifold.queues.verbs.verb import Verb
from manifold.recorder import _metrics
from manifold.recorder._corrupt_keys import CorruptQueues, Sent
from manifold.recorder._parser import Incoming

MESSAGES_PER_FLUSH = 1000
Known = EcqAck | tuple[int, Rewind]  # the rewind's own seq, and the rewind


class EcqEnqueuer:
    """Enqueues messages of compacted queues. Idempotent: the same message may be offered any number of times.

    Raises:
        redis.RedisError, Retryable: from every method. Some of the messages may be enqueued: offer all of them again.
    """

    def __init__(self, queues: Queues, corrupt: CorruptQueues) -> None:
        self._queues, self._corrupt = queues, corrupt

    async def offer(self, asked: Sequence[Incoming], load_id: bytes | None) -> None:
        """Enqueue writes and rewinds in seq order into the queues of the load `load_id`; up to 1,000 per round trip."""
        for start in range(0, len(asked), MESSAGES_PER_FLUSH):
            await self._offer(asked[start : start + MESSAGES_PER_FLUSH], load_id or b"")

    async def replay(self, known: Iterable[Known]) -> None:
        """Repeat acknowledgements and rewinds in the order of epochs: a rewind before the acknowledgements that followed it."""
        sent = [_again(one) for one in sorted(known, key=_epoch)]
        for start in range(0, len(sent), MESSAGES_PER_FLUSH):
            some, batch = sent[start : start + MESSAGES_PER_FLUSH], self._queues.batch()
            for queue, verb in some:
                batch.add(queue, verb, wall_clock_ms())
            replies = zip(some, await batch.run(tolerant=True), strict=True)
            changed = {sent[0] for sent, reply in replies if not is_corrupt(reply) and reply.word in ("ready", "ended")}
            await self._queues.wake(changed)

    async def _offer(self, asked: Sequence[Incoming], load_id: bytes) -> None:
        """Enqueue one round trip's writes and rewinds; raises Retryable if the queues are of another load than `load_id`."""
        of_cluster, now_ms = is_cluster(self._queues.redis), wall_clock_ms()
        if of_cluster and (found := await self._queues.redis.get(keys.LOADED)) != load_id:
            raise Retryable(why_not_loaded(found))
        batch = self._queues.batch()
        # A rewind does not check whether the queues are loaded; if they are not, it is offered again.
        batch.call(("GET", keys.LOADED), _identity)
        sent = list(_verbs(asked, None if of_cluster else load_id))
        for queue, verb in sent:
            batch.add(queue, verb, now_ms)
        loaded, *answers = await batch.run(tolerant=True)
        if loaded != load_id:
            raise Retryable(why_not_loaded(loaded))
        replies = await self._corrupt.sound_by_verb(zip(sent, answers, strict=True))
        if any(reply.word == "unloaded" for _, reply in replies):
            raise Retryable(why_not_loaded(await self._queues.redis.get(keys.LOADED)))
        await self._queues.wake({queue for (queue, verb), reply in replies if reply.word == "ready" and not _wakes(verb)})
        queued = sum(reply.queued for _, reply in replies)
        _metrics.ENTRIES.labels("queued").inc(queued)
        _metrics.ENTRIES.labels("known").inc(max(0, len(asked) - queued))
        _metrics.ECQ_SUPERSEDED.inc(sum(reply.superseded for _, reply in replies) + len(asked) - len(sent))


def _verbs(asked: Sequence[Incoming], load_id: bytes | None) -> Iterator[Sent]:
    """One verb per message, in seq order, except for writes that a later write of the group supersedes.

    Replayed writes are kept nevertheless: an acknowledged message is removed only if the queue itself supersedes it. `load_id` is
    None in a cluster, where a verb can neither check whether the queues are loaded nor wake a dispatcher.
    """
    newest = {(said.client_id, said.key): incoming.seq for incoming in asked if isinstance(said := incoming.ecq, Append)}
    for incoming in asked:
        match incoming.ecq:
            case Append(client_id, key, payload) if incoming.message is None or newest[client_id, key] == incoming.seq:
                if load_id is None:
                    yield ecq_queue(client_id), verbs.Append(incoming.seq, key, payload)
                else:
                    yield ecq_queue(client_id), verbs.DirectAppend(incoming.seq, key, payload, load_id)
            case Rewind(client_id, first_seq):
                yield ecq_queue(client_id), verbs.Rewind(incoming.seq, first_seq)


def _wakes(verb: Verb) -> bool:
    return isinstance(verb, verbs.DirectAppend)


def _again(one: Known) -> Sent:
    if isinstance(one, EcqAck):
        return ecq_queue(one.client_id), verbs.Acknowledge(one, claim=False, sends_outcome=False)
    seq, rewind = one
    return ecq_queue(rewind.client_id), verbs.Rewind(seq, rewind.first_seq)


def _epoch(one: Known) -> tuple[int, bool, int]:
    """Sort key: a message written after a rewind was also acknowledged after it, whatever epoch its record has."""
    return (max(one.epoch, one.seq), True, one.seq) if isinstance(one, EcqAck) else (one[0], False, 0)


def _identity(reply: bytes | None) -> bytes | None:
    return reply
