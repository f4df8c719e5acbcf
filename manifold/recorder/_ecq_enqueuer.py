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
from manifold.recorder._corrupt_keys import CorruptQueues, QueueVerb
from manifold.recorder._parser import Incoming

MESSAGES_PER_FLUSH = 1000
EcqChange = EcqAck | tuple[int, Rewind]  # a change of what is acknowledged: an acknowledgement, or (seq, rewind)


class EcqEnqueuer:
    """Enqueues the messages of compacted queues. Idempotent: the same message may be offered any number of times.

    Raises:
        redis.RedisError, Retryable: from every method. Some of the messages may be enqueued: offer all of them again.
    """

    def __init__(self, queues: Queues, corrupt: CorruptQueues) -> None:
        self._queues, self._corrupt = queues, corrupt

    async def offer(self, messages: Sequence[Incoming], load_id: bytes | None) -> None:
        """Enqueue writes and rewinds in seq order, up to 1,000 per round trip, into the queues of the load `load_id`."""
        for start in range(0, len(messages), MESSAGES_PER_FLUSH):
            await self._offer(messages[start : start + MESSAGES_PER_FLUSH], load_id or b"")

    async def replay(self, changes: Iterable[EcqChange]) -> None:
        """Repeat acknowledgements and rewinds in the order of epochs: a rewind before the acknowledgements that followed it."""
        verbs_by_epoch = [_verb_of(change) for change in sorted(changes, key=_epoch_key)]
        for start in range(0, len(verbs_by_epoch), MESSAGES_PER_FLUSH):
            chunk = verbs_by_epoch[start : start + MESSAGES_PER_FLUSH]
            batch = self._queues.batch()
            for queue, verb in chunk:
                batch.add(queue, verb, wall_clock_ms())
            changed_queues = set()
            for (queue, _), reply in zip(chunk, await batch.run(tolerant=True), strict=True):
                if not is_corrupt(reply) and reply.word in ("ready", "ended"):
                    changed_queues.add(queue)
            await self._queues.wake(changed_queues)

    async def _offer(self, messages: Sequence[Incoming], load_id: bytes) -> None:
        """Enqueue the writes and rewinds of one round trip; raises Retryable if the queues are of another load than `load_id`."""
        in_cluster, now_ms = is_cluster(self._queues.redis), wall_clock_ms()
        if in_cluster:  # elsewhere, the verb of each write checks this itself
            loaded = await self._queues.redis.get(keys.LOADED)
            if loaded != load_id:
                raise Retryable(why_not_loaded(loaded))
        batch = self._queues.batch()
        # A rewind does not check whether the queues are loaded; if they are not, it is offered again.
        batch.call(("GET", keys.LOADED), _identity)
        sent = list(_verbs(messages, None if in_cluster else load_id))
        for queue, verb in sent:
            batch.add(queue, verb, now_ms)
        loaded, *answers = await batch.run(tolerant=True)
        if loaded != load_id:
            raise Retryable(why_not_loaded(loaded))
        replies = await self._corrupt.intact_replies_by_verb(zip(sent, answers, strict=True))
        if any(reply.word == "unloaded" for _, reply in replies):
            raise Retryable(why_not_loaded(await self._queues.redis.get(keys.LOADED)))
        ready_queues = {queue for (queue, verb), reply in replies if reply.word == "ready" and not _wakes_dispatcher(verb)}
        await self._queues.wake(ready_queues)
        queued = sum(reply.queued for _, reply in replies)
        _metrics.ENTRIES.labels("queued").inc(queued)
        _metrics.ENTRIES.labels("known").inc(max(0, len(messages) - queued))
        superseded_in_group = len(messages) - len(sent)
        _metrics.ECQ_SUPERSEDED.inc(sum(reply.superseded for _, reply in replies) + superseded_in_group)


def _verbs(messages: Sequence[Incoming], load_id: bytes | None) -> Iterator[QueueVerb]:
    """Yield one verb per message, in seq order, except for a new write that a later write of the group supersedes.

    A replayed write is sent even then: if it was acknowledged, the queue must see it superseded in order to forget it.
    `load_id` is None in a cluster, where a verb can neither check whether the queues are loaded nor wake a dispatcher.
    """
    newest: dict[tuple[str, str], int] = {}  # (client id, key) → seq of the last write
    for incoming in messages:
        if isinstance(incoming.ecq, Append):
            newest[incoming.ecq.client_id, incoming.ecq.key] = incoming.seq
    for incoming in messages:
        match incoming.ecq:
            case Append(client_id, key, payload):
                is_replayed = incoming.message is None
                if not is_replayed and newest[client_id, key] != incoming.seq:
                    continue
                if load_id is None:
                    yield ecq_queue(client_id), verbs.Append(incoming.seq, key, payload)
                else:
                    yield ecq_queue(client_id), verbs.DirectAppend(incoming.seq, key, payload, load_id)
            case Rewind(client_id, first_seq):
                yield ecq_queue(client_id), verbs.Rewind(incoming.seq, first_seq)


def _wakes_dispatcher(verb: Verb) -> bool:
    """Whether the script of this verb itself wakes a dispatcher."""
    return isinstance(verb, verbs.DirectAppend)


def _verb_of(change: EcqChange) -> QueueVerb:
    """The queue of an acknowledgement or rewind, and the verb that repeats the change."""
    if isinstance(change, EcqAck):
        return ecq_queue(change.client_id), verbs.Acknowledge(change, claim=False, sends_outcome=False)
    seq, rewind = change
    return ecq_queue(rewind.client_id), verbs.Rewind(seq, rewind.first_seq)


def _epoch_key(change: EcqChange) -> tuple[int, bool, int]:
    """The sort key for `replay`: first the epoch, then the rewind that began it before its acknowledgements, which go by seq.

    An epoch is the seq of the rewind that began it.
    """
    if isinstance(change, EcqAck):
        # A message with a greater seq than a rewind was acknowledged after the rewind, even if its record has an older epoch.
        epoch = max(change.epoch, change.seq)
        return epoch, True, change.seq
    rewind_seq, _ = change
    return rewind_seq, False, 0


def _identity(reply: bytes | None) -> bytes | None:
    return reply
