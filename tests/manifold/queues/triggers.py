"""A trigger in the queues, enqueued as by the recorder."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from manifold.contracts.brakes import EntryTrigger
from manifold.queues import Queues
from manifold.queues.verbs.fills import Enqueue


@dataclass(slots=True)
class Enqueued:
    """What happened to the entries of one trigger."""

    queued: int = 0  # new
    known: int = 0  # queued or ended before
    ready: list[str] = field(default_factory=list)  # owners for whom a dispatcher was woken
    superseded: list[tuple[str, int]] = field(default_factory=list)  # owner and seq of superseded entries


async def enqueue_trigger(
    queues: Queues, seq: int, owners: Sequence[str], request_id: str, data_id: str, now_ms: int
) -> Enqueued:
    """Queue one trigger for all its owners and wake dispatchers for those that can receive it now."""
    result = Enqueued()
    await queues.store_trigger(seq, EntryTrigger(request_id, data_id))
    batch = queues.batch()
    for owner in owners:
        batch.add(owner, Enqueue([(seq, request_id)]), now_ms)
    for owner, reply in zip(owners, await batch.run(), strict=True):
        result.queued += reply.queued
        result.known += not reply.queued
        result.superseded += [(owner, old) for old in reply.superseded]
        if reply.word == "ready":
            result.ready.append(owner)
    await queues.wake(result.ready)
    return result
