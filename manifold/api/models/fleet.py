"""Response models for all queues together, and for the longest and oldest ones."""

from datetime import datetime

from pydantic import BaseModel, Field

from manifold.api.models.fields import Count, Vin, example

QUEUE_STATS = {
    "age_seconds": 12.4,
    "at": "2026-11-21T13:42:00Z",
    "known": 1000000,
    "present": 100000,
    "unsubscribed": 12,
    "queues": 900000,
    "pending": 1800000,
    "parked": 0,
    "in_flight": 3,
    "remembered": 100000,
    "ecq_queues": 1200,
    "ecq_pending": 4100,
    "ecq_live": 5000000,
    "ecq_in_flight": 2,
}


class QueueStats(BaseModel):
    """Counts of all queues together, from the last walk over all keys: near, not exact."""

    model_config = example(**QUEUE_STATS)

    age_seconds: float = Field(description="how long ago the walk began")
    at: datetime = Field(description="when it began")
    known: Count = Field(description="vehicles with a known connection, past or present")
    present: Count = Field(description="of them, here and listening")
    unsubscribed: Count = Field(description="of them, here and not listening")
    queues: Count = Field(description="vehicles with something pending or in flight")
    pending: Count = Field(description="entries; those in flight left out")
    parked: Count = Field(description="entries whose data has not come")
    in_flight: Count = Field(description="entries that are published and not yet acknowledged")
    remembered: Count = Field(description="entries that ended lately and that the lake may not know yet")
    ecq_queues: Count = Field(description="clients with something pending or in flight in their compacted queues")
    ecq_pending: Count = Field(description="messages of compacted queues; those in flight left out")
    ecq_live: Count = Field(description="messages that are the newest of their keys, acknowledged or not")
    ecq_in_flight: Count = Field(description="messages of compacted queues that are published and not yet acknowledged")


class Fleet(QueueStats):
    """Vehicles by presence, entries by state."""

    model_config = example(**QUEUE_STATS, oldest_at="2026-11-20T08:00:00Z", ecq_oldest_at=None)

    oldest_at: datetime | None = Field(description="when the oldest entry that is not acknowledged was accepted")
    ecq_oldest_at: datetime | None = Field(description="the same of the messages of compacted queues")


class Queue(BaseModel):
    """One queue that is among the longest or the oldest."""

    vin: Vin
    entries: Count = Field(description="how many it holds")
    oldest_at: datetime = Field(description="when the oldest of them was accepted")


class Queues(BaseModel):
    """The longest queues and those with the oldest entries: named by the last queue statistics, looked at again now."""

    model_config = example(
        queue_stats=QUEUE_STATS,
        longest=[{"vin": "1M8GDM9AXKP042788", "entries": 41, "oldest_at": "2026-11-20T08:00:00Z"}],
        oldest=[{"vin": "5YJBT6ZE7T7002409", "entries": 1, "oldest_at": "2026-11-20T08:00:00Z"}],
    )

    queue_stats: QueueStats
    longest: list[Queue]
    oldest: list[Queue]
