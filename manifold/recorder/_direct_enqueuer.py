"""The direct enqueue: messages go from disk to the queues at once, strictly in seq order."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import structlog
from redis.exceptions import RedisError, ResponseError

from manifold.contracts import keys
from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Data, Trigger
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import FIRST, Batch, Queues, TriggerName, is_cluster, is_corrupt, store_trigger, why_not_loaded
from manifold.queues.verbs.ends import Ack
from manifold.queues.verbs.fills import DirectEnqueue, Enqueue, EnqueueReply
from manifold.recorder import _metrics
from manifold.recorder._corrupt_keys import CorruptQueues
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._ecq_enqueuer import EcqEnqueuer
from manifold.recorder._lake import Lake
from manifold.recorder._parser import Incoming

OWNERS_PER_FLUSH = 500
MAX_OWNERS_SINGLE = 16  # owners of a trigger up to which it can be enqueued alone, in a single round trip
Ended = AbstractSet[tuple[str, int]]  # (vin, seq) of each entry that has ended
NO_OUTCOMES: Ended = frozenset()

log = structlog.get_logger(__name__)


class DirectEnqueuer:
    """Enqueues messages. Idempotent: the same message may be offered any number of times.

    Raises:
        redis.RedisError, Retryable: from every method. Some messages of a group may be enqueued: offer the whole group again.
    """

    def __init__(self, queues: Queues, dedupe: DedupeWindow, lake: Lake) -> None:
        self._queues, self._dedupe, self._lake = queues, dedupe, lake
        # Identifies the loading of Redis (its first, or a rebuild) to which `offer` adds. If Redis was loaded again since, older
        # messages may be missing there.
        self.load_id: bytes | None = None
        self.corrupt = CorruptQueues(queues)
        self.ecq = EcqEnqueuer(queues, self.corrupt)

    async def offer(self, group: Sequence[Incoming], *, skip: Ended = NO_OUTCOMES) -> None:
        """Enqueue a group in seq order and set the result on each message. `skip` lists entries that have already ended."""
        ecq_messages = [incoming for incoming in group if incoming.offerable and incoming.ecq is not None]
        if ecq_messages:
            await self.ecq.offer(ecq_messages, self.load_id)
            for incoming in ecq_messages:
                incoming.applied = True
        offered = [
            incoming for incoming in group if incoming.offerable and (incoming.trigger is not None or incoming.data is not None)
        ]
        if not offered:
            return
        if len(offered) == 1 and not skip and await self._offer_single(offered[0]):
            return
        unknown_data_ids = await self._mark_duplicates(offered)
        for incoming in offered:
            data = _data_of(incoming)
            if data is not None and incoming.offerable:
                await self._store(incoming, data, unknown_data_ids)
        await self._enqueue([incoming for incoming in offered if incoming.trigger and incoming.offerable], skip)
        for incoming in offered:
            incoming.applied = incoming.offerable

    async def end(self, records: Sequence[OutcomeRecord], now_ms: int) -> None:
        """End these entries, whatever their state in the queues.

        Dispatchers are then woken for the vehicles of the entries that had not ended before, whose next entry can be claimed.
        """
        batch = self._queues.batch()
        for record in records:
            batch.add(record.vin, Ack(record, claim=False, sends_outcome=False), now_ms)
        replies = await batch.run(tolerant=True)
        ended_vins = {
            record.vin for record, reply in zip(records, replies, strict=True) if not is_corrupt(reply) and reply.word == "ended"
        }
        await self._queues.wake(ended_vins)

    async def _offer_single(self, incoming: Incoming) -> bool:
        """Enqueue a single trigger for few owners in one round trip, which keeps latency low at light load.

        Only a trigger without inline data and without a campaign qualifies, within its dedupe window, and not in a cluster. For
        any other message, or if the key of its digest is corrupt, nothing is enqueued and False is returned.
        """
        trigger, digest, now_ms = incoming.trigger, incoming.digest, wall_clock_ms()
        dedupe_ms = self._dedupe.remaining_ms(incoming.seq, now_ms)
        if trigger is None or digest is None or trigger.data is not None or incoming.applied or dedupe_ms <= 0:
            return False
        if len(trigger.ids) > MAX_OWNERS_SINGLE or is_cluster(self._queues.redis) or trigger.campaign is not None:
            return False
        batch = self._queues.batch()
        batch.call(("SET", keys.dedupe(digest), incoming.seq, "NX", "GET", "PX", dedupe_ms), _seq_or_none)
        self._add_trigger(batch, incoming.seq, trigger)
        first_verb = len(batch)  # index in the replies: the commands above come before the verbs
        verb = DirectEnqueue(incoming.seq, trigger.request_id, trigger.data_id, digest, self.load_id or b"")
        for owner in trigger.ids:
            batch.add(owner, verb, now_ms)
        answers = await batch.run(tolerant=True)
        registered_seq = answers[0]
        if is_corrupt(registered_seq):
            return False
        replies = await self.corrupt.intact_replies(zip(trigger.ids, answers[first_verb:], strict=True))
        if any(reply.word == "unloaded" for reply in replies.values()):
            raise Retryable(why_not_loaded(await self._queues.redis.get(keys.LOADED)))
        self._mark_if_duplicate(incoming, registered_seq)
        if incoming.offerable:  # of a duplicate, nothing was enqueued
            await self._count_and_report(replies, len(replies), now_ms)
        incoming.applied = incoming.offerable
        return True

    async def _mark_duplicates(self, offered: Sequence[Incoming]) -> set[str]:
        """Mark each trigger that repeats an earlier trigger of this or another recorder, by their digests in Redis.

        Returns the data_ids of the offered data messages whose data Redis lacks. All takes one round trip, in which each new
        trigger registers its digest.

        Raises:
            Retryable: the queues are not of the load `load_id`.
        """
        now_ms = wall_clock_ms()
        pipe = self._queues.redis.pipeline(transaction=False)
        pipe.get(keys.LOADED)
        triggers, data_ids = [], []
        for incoming in offered:
            dedupe_ms = self._dedupe.remaining_ms(incoming.seq, now_ms)
            if incoming.digest is not None and not incoming.applied and dedupe_ms > 0:
                pipe.set(keys.dedupe(incoming.digest), incoming.seq, nx=True, get=True, px=dedupe_ms)
                triggers.append(incoming)
        for incoming in offered:
            if incoming.data is not None:
                pipe.exists(keys.data(incoming.data.data_id))
                data_ids.append(incoming.data.data_id)
        load_id, *replies = await pipe.execute(raise_on_error=False)
        for reply in (load_id, *replies):
            if isinstance(reply, RedisError) and not is_corrupt(reply):
                raise reply
        if load_id is None or load_id != self.load_id:
            raise Retryable(why_not_loaded(load_id))
        dedupe_replies, exists_replies = replies[: len(triggers)], replies[len(triggers) :]
        for incoming, reply in zip(triggers, dedupe_replies, strict=True):
            if not is_corrupt(reply):  # a trigger whose key is corrupt counts as new
                self._mark_if_duplicate(incoming, _seq_or_none(reply))
        return {data_id for data_id, exists in zip(data_ids, exists_replies, strict=True) if not exists}

    async def _store(self, incoming: Incoming, data: Data, unknown_data_ids: set[str]) -> None:
        """Store the data of a message in Redis; refuse the message if Redis or the lake has other bytes under its data_id.

        The lake is only read for `unknown_data_ids`, from which the data_id is then removed, so that it is read once.
        """
        payload_in_lake: bytes | None = None
        if data.data_id in unknown_data_ids:
            payload_in_lake = await self._lake.payload(data.data_id)
            unknown_data_ids.remove(data.data_id)
        differs = payload_in_lake is not None and payload_in_lake != data.payload
        if not differs:
            differs = await self._store_in_redis(data)
        if differs:
            incoming.refused_because = f"data_id {data.data_id!r} is known with other bytes; publish these under another data_id"
            if incoming.digest is not None:  # a trigger that repeats this refused one is no duplicate
                self._dedupe.forget(incoming.digest, incoming.seq)
                await self._queues.redis.delete(keys.dedupe(incoming.digest))

    async def _store_in_redis(self, data: Data) -> bool:
        """Store data in Redis; return whether Redis has other bytes under its data_id, in which case it keeps those.

        A corrupt key is only logged, so that it blocks no other message.
        """
        try:
            return await self._queues.store_data(data.data_id, data.payload, wall_clock_ms()) == "differs"
        except ResponseError as exc:
            if not is_corrupt(exc):
                raise
            key = keys.data(data.data_id)
            log.warning("corrupt key in redis; data not stored", key=key, reason=str(exc), remedy="delete it")
            return False

    async def _enqueue(self, triggers: Sequence[Incoming], skip: Ended) -> None:
        """Enqueue all entries of all triggers, except those in `skip`. The entries of one owner go in one call, in seq order."""
        entries: dict[Owner, list[tuple[int, str]]] = {}  # (seq, request_id) of each entry
        batch = self._queues.batch()
        for incoming in triggers:
            trigger = incoming.trigger
            assert trigger is not None
            self._add_trigger(batch, incoming.seq, trigger)
            for owner in trigger.ids:
                if (owner, incoming.seq) not in skip:
                    entries.setdefault(owner, []).append((incoming.seq, trigger.request_id))
        trigger_name, owners = _name_if_single(triggers), list(entries)
        for start in range(0, len(owners), OWNERS_PER_FLUSH):
            chunk = owners[start : start + OWNERS_PER_FLUSH]
            first_reply = len(batch)  # the first chunk's batch begins with the commands of the triggers, and so do its replies
            now_ms = wall_clock_ms()
            for owner in chunk:
                batch.add(owner, Enqueue(entries[owner]), now_ms)
            answers = await batch.run(tolerant=True)
            replies = await self.corrupt.intact_replies(zip(chunk, answers[first_reply:], strict=True))
            await self._queues.wake([owner for owner, reply in replies.items() if reply.word == "ready"], trigger_name)
            await self._count_and_report(replies, sum(len(entries[owner]) for owner in chunk), now_ms)

    def _add_trigger(self, batch: Batch, seq: int, trigger: Trigger) -> None:
        """Add the commands that store what all entries of a trigger share, and that keep its data as long as the trigger."""
        for command in store_trigger(self._queues.policy, seq, _entry_trigger(trigger)):
            batch.call(command, int, stage=FIRST)
        batch.call(("PEXPIRE", keys.data(trigger.data_id), self._queues.policy.retention_ms), int, stage=FIRST)

    def _mark_if_duplicate(self, incoming: Incoming, registered_seq: int | None) -> None:
        """Mark a trigger as a duplicate if its digest was already registered under another seq; None: it was not registered."""
        if registered_seq is not None and registered_seq != incoming.seq:
            incoming.duplicate_of = registered_seq
            self._dedupe.correct(str(incoming.digest), incoming.seq, registered_seq)

    async def _count_and_report(self, replies: Mapping[Owner, EnqueueReply], offered: int, now_ms: int) -> None:
        """Count how many of the offered entries were queued, or known before; write the outcomes of those that they superseded.

        `offered` is the number of entries offered.
        """
        queued = sum(reply.queued for reply in replies.values())
        _metrics.ENTRIES.labels("queued").inc(queued)
        _metrics.ENTRIES.labels("known").inc(offered - queued)
        superseded = [(vin, seq) for vin, reply in replies.items() for seq in reply.superseded]
        if superseded:
            await self._queues.add_outcomes(OutcomeRecord(vin, seq, Outcome.SUPERSEDED, now_ms) for vin, seq in superseded)


def _entry_trigger(trigger: Trigger) -> EntryTrigger:
    """The facts that all entries of a trigger share."""
    if trigger.campaign is None:
        return EntryTrigger(trigger.request_id, trigger.data_id)
    return EntryTrigger(trigger.request_id, trigger.data_id, is_release=True, until_ms=trigger.campaign.until_ms)


def _data_of(incoming: Incoming) -> Data | None:
    """The data that a message contains: that of a data message or of a trigger with inline data; None for any other message."""
    if incoming.data is not None:
        return incoming.data
    trigger: Trigger | None = incoming.trigger
    if trigger is not None and trigger.data is not None:
        return Data(trigger.data_id, trigger.data)
    return None


def _name_if_single(triggers: Sequence[Incoming]) -> TriggerName | None:
    """The name of the only trigger of a group, for the wake-up of dispatchers; None if there are several triggers.

    It is also None for a campaign's release, because a dispatcher must read more of such a trigger than its name.
    """
    if len(triggers) != 1:
        return None
    incoming = triggers[0]
    trigger = incoming.trigger
    if trigger is None or trigger.campaign is not None:
        return None
    return incoming.seq, trigger.request_id, trigger.data_id


def _seq_or_none(reply: bytes | None) -> int | None:
    return None if reply is None else int(reply)
