"""`/fleet` and `/queues`: the counts of the last queue statistics, and the queues that they name."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from manifold import queues
from manifold.api._sources import Sources
from manifold.api.models.fleet import Fleet, Queue, Queues, QueueStats
from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.contracts.seq import datetime_of, wall_clock_ms
from manifold.history.entry import instant_of
from manifold.queues import AsyncBatch

Count = Annotated[int, Query(ge=1, le=20, description="queues of each kind")]


def fleet_routes(sources: Sources) -> APIRouter:
    """Return the routes served from the queue statistics."""
    router = APIRouter(tags=["fleet"])

    @router.get("/fleet")
    async def fleet() -> Fleet:
        """The number of connected vehicles, and the number of entries by state."""
        stats = await _queue_stats(sources)
        oldest_at = _accepted_at_of_first(stats.oldest)
        ecq_oldest_at = _accepted_at_of_first(stats.ecq_oldest)
        return Fleet(**_counts(stats), oldest_at=oldest_at, ecq_oldest_at=ecq_oldest_at)

    @router.get("/queues")
    async def longest_and_oldest(count: Count = 10) -> Queues:
        """The longest queues, and those with the oldest entries."""
        stats = await _queue_stats(sources)
        longest = await _current_state(sources, [vin for vin, _ in stats.longest])
        oldest = await _current_state(sources, [vin for vin, _ in stats.oldest])
        longest.sort(key=lambda queue: -queue.entries)
        oldest.sort(key=lambda queue: queue.oldest_at)
        return Queues(queue_stats=QueueStats(**_counts(stats)), longest=longest[:count], oldest=oldest[:count])

    return router


async def _queue_stats(sources: Sources) -> queues.QueueStats:
    stats = await queues.QueueStats.load(sources.redis)
    if stats is None:
        raise Retryable("no dispatcher has counted yet; see `manifold status`, or count now with `manifold fleet --fresh`")
    return stats


def _accepted_at_of_first(oldest: Sequence[tuple[str, int]]) -> datetime | None:
    """Return when the oldest entry was accepted. `oldest` lists owners with the seq of their oldest entry, oldest first."""
    if not oldest:
        return None
    _, seq = oldest[0]
    return datetime_of(seq)


def _counts(stats: queues.QueueStats) -> dict[str, Any]:
    """Return the fields of the statistics, and when they were counted."""
    age_s = max(0.0, round((wall_clock_ms() - stats.at_ms) / 1000, 1))
    return asdict(stats) | {"age_seconds": age_s, "at": instant_of(stats.at_ms)}


async def _current_state(sources: Sources, vins: list[str]) -> list[Queue]:
    """Return the current state of these queues, without queues that are now empty or corrupt."""
    if not vins:
        return []
    batch = AsyncBatch(sources.redis, sources.policy)
    for vin in vins:
        batch.call(("ZCARD", keys.pending(vin)), int)
        batch.call(("ZRANGE", keys.pending(vin), 0, 0), _oldest_at)
    replies = await batch.run(tolerant=True)  # two for each vehicle
    current: list[Queue] = []
    for vin, entries, oldest_at in zip(vins, replies[::2], replies[1::2], strict=True):
        if isinstance(oldest_at, datetime):  # None: the queue is empty; an error: it is corrupt
            current.append(Queue(vin=vin, entries=entries, oldest_at=oldest_at))
    return current


def _oldest_at(first_members: list[bytes]) -> datetime | None:
    """Return when the oldest entry was accepted, from a reply with its seq; None for an empty reply."""
    return datetime_of(int(first_members[0])) if first_members else None
