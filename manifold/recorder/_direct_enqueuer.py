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
MAX_OWNERS_ALONE = 16  # of a trigger that is enqueued by itself, in a single round trip
Ended = AbstractSet[tuple[str, int]]  # vin and seq of entries that have ended
NO_OUTCOMES: Ended = frozenset()

log = structlog.get_logger(__name__)


class DirectEnqueuer:
    """Enqueues messages. Idempotent: the same message may be offered any number of times.

    Raises:
        redis.RedisError, Retryable: from every method. Part of a group may be enqueued then: offer all of it again.
    """

    def __init__(self, queues: Queues, dedupe: DedupeWindow, lake: Lake) -> None:
        self._queues, self._dedupe, self._lake = queues, dedupe, lake
        self.load_id: bytes | None = None  # the load that `offer` adds to; after a newer load, older messages may be missing
        self.corrupt = CorruptQueues(queues)
        self.ecq = EcqEnqueuer(queues, self.corrupt)

    async def offer(self, group: Sequence[Incoming], *, skip: Ended = NO_OUTCOMES) -> None:
        """Enqueue a group in seq order and set the result on each message.

        `skip` are entries (vin, seq) that have already ended.
        """
        of_ecq = [incoming for incoming in group if incoming.offerable and incoming.ecq is not None]
        if of_ecq:
            await self.ecq.offer(of_ecq, self.load_id)
            for incoming in of_ecq:
                incoming.applied = True
        asked = [
            incoming for incoming in group if incoming.offerable and (incoming.trigger is not None or incoming.data is not None)
        ]
        if not asked:
            return
        if len(asked) == 1 and not skip and await self._offer_alone(asked[0]):
            return
        unknown = await self._admit(asked)
        for incoming in asked:
            data = _data_of(incoming)
            if data is not None and incoming.offerable:
                await self._store(incoming, data, unknown)
        await self._enqueue([incoming for incoming in asked if incoming.trigger and incoming.offerable], skip)
        for incoming in asked:
            incoming.applied = incoming.offerable

    async def end(self, records: Sequence[OutcomeRecord], now_ms: int) -> None:
        """End these entries, whatever their state in the queues, and wake their owners: the entries behind can be claimed now."""
        batch = self._queues.batch()
        for record in records:
            batch.add(record.vin, Ack(record, claim=False, sends_outcome=False), now_ms)
        found = zip(records, await batch.run(tolerant=True), strict=True)
        await self._queues.wake({record.vin for record, reply in found if not is_corrupt(reply) and reply.word == "ended"})

    async def _offer_alone(self, incoming: Incoming) -> bool:
        """Enqueue a small single trigger in one round trip, for low latency at light load; False if it does not qualify."""
        trigger, digest, now_ms = incoming.trigger, incoming.digest, wall_clock_ms()
        left_ms = self._dedupe.remaining_ms(incoming.seq, now_ms)
        if trigger is None or digest is None or trigger.data is not None or incoming.applied or left_ms <= 0:
            return False
        if len(trigger.ids) > MAX_OWNERS_ALONE or is_cluster(self._queues.redis) or trigger.campaign is not None:
            return False
        batch = self._queues.batch()
        batch.call(("SET", keys.dedupe(digest), incoming.seq, "NX", "GET", "PX", left_ms), _number)
        self._add_trigger(batch, incoming.seq, trigger)
        before = len(batch)
        verb = DirectEnqueue(incoming.seq, trigger.request_id, trigger.data_id, digest, self.load_id or b"")
        for owner in trigger.ids:
            batch.add(owner, verb, now_ms)
        first, *answers = await batch.run(tolerant=True)
        if is_corrupt(first):
            return False
        replies = await self.corrupt.sound(zip(trigger.ids, answers[before - 1 :], strict=True))
        if any(reply.word == "unloaded" for reply in replies.values()):
            raise Retryable(why_not_loaded(await self._queues.redis.get(keys.LOADED)))
        self._note_first(incoming, first)
        if incoming.offerable:
            await self._settle(replies, len(replies), now_ms)
        incoming.applied = incoming.offerable
        return True

    async def _admit(self, asked: Sequence[Incoming]) -> set[str]:
        """Find out in one round trip whether the queues are loaded, and which triggers are duplicates.

        Returns the data_ids that Redis does not have.
        """
        now_ms = wall_clock_ms()
        pipe = self._queues.redis.pipeline(transaction=False)
        pipe.get(keys.LOADED)
        registering, data_ids = [], []
        for incoming in asked:
            left_ms = self._dedupe.remaining_ms(incoming.seq, now_ms)
            if incoming.digest is not None and not incoming.applied and left_ms > 0:
                pipe.set(keys.dedupe(incoming.digest), incoming.seq, nx=True, get=True, px=left_ms)
                registering.append(incoming)
        for incoming in asked:
            if incoming.data is not None:
                pipe.exists(keys.data(incoming.data.data_id))
                data_ids.append(incoming.data.data_id)
        load_id, *answers = await pipe.execute(raise_on_error=False)
        refused = (a for a in (load_id, *answers) if isinstance(a, RedisError) and not is_corrupt(a))
        if (problem := next(refused, None)) is not None:
            raise problem
        if load_id is None or load_id != self.load_id:
            raise Retryable(why_not_loaded(load_id))
        for incoming, first in zip(registering, answers, strict=False):
            self._note_first(incoming, None if is_corrupt(first) else _number(first))
        found = zip(data_ids, answers[len(registering) :], strict=True)
        return {data_id for data_id, exists in found if not exists}

    async def _store(self, incoming: Incoming, data: Data, unknown: set[str]) -> None:
        in_lake = await self._lake.payload(data.data_id) if data.data_id in unknown else None
        unknown.discard(data.data_id)
        differs = in_lake is not None and in_lake != data.payload
        if not differs:
            differs = await self._put(data) == "differs"
        if differs:
            incoming.refused_because = f"data_id {data.data_id!r} is known with other bytes; publish these under another data_id"
            if incoming.digest is not None:
                self._dedupe.forget(incoming.digest, incoming.seq)
                await self._queues.redis.delete(keys.dedupe(incoming.digest))

    async def _put(self, data: Data) -> str:
        try:
            return await self._queues.store_data(data.data_id, data.payload, wall_clock_ms())
        except ResponseError as exc:
            if not is_corrupt(exc):
                raise
            log.warning("corrupt key in redis", key=keys.data(data.data_id), reason=str(exc), remedy="delete it")
            return "corrupt"

    async def _enqueue(self, asked: Sequence[Incoming], skip: Ended) -> None:
        """Enqueue all entries of all triggers; those of one owner in one call, in seq order."""
        entries: dict[Owner, list[tuple[int, str]]] = {}
        batch = self._queues.batch()
        for incoming in asked:
            trigger = incoming.trigger
            assert trigger is not None
            self._add_trigger(batch, incoming.seq, trigger)
            for owner in trigger.ids:
                if (owner, incoming.seq) not in skip:
                    entries.setdefault(owner, []).append((incoming.seq, trigger.request_id))
        named, owners = _name_of(asked), list(entries)
        for start in range(0, len(owners), OWNERS_PER_FLUSH):
            some = owners[start : start + OWNERS_PER_FLUSH]
            before, now_ms = len(batch), wall_clock_ms()
            for owner in some:
                batch.add(owner, Enqueue(entries[owner]), now_ms)
            replies = await self.corrupt.sound(zip(some, (await batch.run(tolerant=True))[before:], strict=True))
            await self._queues.wake([owner for owner, reply in replies.items() if reply.word == "ready"], named)
            await self._settle(replies, sum(len(entries[owner]) for owner in some), now_ms)

    def _add_trigger(self, batch: Batch, seq: int, trigger: Trigger) -> None:
        """Add the commands for what all entries of a trigger share. Data lives as long as the triggers that name it."""
        for command in store_trigger(self._queues.policy, seq, _entry_trigger(trigger)):
            batch.call(command, int, stage=FIRST)
        batch.call(("PEXPIRE", keys.data(trigger.data_id), self._queues.policy.retention_ms), int, stage=FIRST)

    def _note_first(self, incoming: Incoming, first: int | None) -> None:
        """Mark a duplicate: `first` is the seq under which the digest was already registered, or None."""
        if first is not None and first != incoming.seq:
            incoming.duplicate_of = first
            self._dedupe.correct(str(incoming.digest), incoming.seq, first)

    async def _settle(self, replies: Mapping[Owner, EnqueueReply], offered: int, now_ms: int) -> None:
        queued = sum(reply.queued for reply in replies.values())
        _metrics.ENTRIES.labels("queued").inc(queued)
        _metrics.ENTRIES.labels("known").inc(offered - queued)
        ended = [(vin, seq) for vin, reply in replies.items() for seq in reply.superseded]
        if ended:
            await self._queues.add_outcomes(OutcomeRecord(vin, seq, Outcome.SUPERSEDED, now_ms) for vin, seq in ended)


def _entry_trigger(trigger: Trigger) -> EntryTrigger:
    of_release = () if trigger.campaign is None else (True, trigger.campaign.until_ms)
    return EntryTrigger(trigger.request_id, trigger.data_id, *of_release)


def _data_of(incoming: Incoming) -> Data | None:
    """The data in a message: its own, or that of an inline trigger."""
    if incoming.data is not None:
        return incoming.data
    trigger: Trigger | None = incoming.trigger
    if trigger is not None and trigger.data is not None:
        return Data(trigger.data_id, trigger.data)
    return None


def _name_of(asked: Sequence[Incoming]) -> TriggerName | None:
    """The trigger of a group with a single message, or None; of a campaign's release, a dispatcher has to read more."""
    trigger = asked[0].trigger if len(asked) == 1 else None
    return None if trigger is None or trigger.campaign is not None else (asked[0].seq, trigger.request_id, trigger.data_id)


def _number(reply: bytes | None) -> int | None:
    return None if reply is None else int(reply)
