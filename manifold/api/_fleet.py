"""`/fleet` and `/queues`: the counts of the last queue statistics, and the queues that they name."""

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
        """How many vehicles are here, and where all entries stand."""
        stats = await _queue_stats(sources)
        oldest, ecq_oldest = (next((datetime_of(seq) for _, seq in named), None) for named in (stats.oldest, stats.ecq_oldest))
        return Fleet(**_counts(stats), oldest_at=oldest, ecq_oldest_at=ecq_oldest)

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


def _counts(stats: queues.QueueStats) -> dict[str, Any]:
    age_s = max(0.0, round((wall_clock_ms() - stats.at_ms) / 1000, 1))
    return asdict(stats) | {"age_seconds": age_s, "at": instant_of(stats.at_ms)}


async def _current_state(sources: Sources, vins: list[str]) -> list[Queue]:
    """Return the current state of these queues; queues that are now empty or corrupt are omitted."""
    batch = AsyncBatch(sources.redis, sources.policy)
    for vin in vins:
        batch.call(("ZCARD", keys.pending(vin)), int)
        batch.call(("ZRANGE", keys.pending(vin), 0, 0), _oldest_at)
    replies = await batch.run(tolerant=True) if vins else []
    found = zip(vins, replies[::2], replies[1::2], strict=True)
    return [Queue(vin=vin, entries=n, oldest_at=at) for vin, n, at in found if isinstance(at, datetime)]


def _oldest_at(head: list[bytes]) -> datetime | None:
    return datetime_of(int(head[0])) if head else None
