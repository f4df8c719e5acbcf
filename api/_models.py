"""What is answered, field by field, with an example of each."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from contracts.seq import MAX_SEQ
from history.entry import BatchHistory, EntryHistory

Seq = Annotated[int, Field(ge=0, le=MAX_SEQ, description="identity that the recorder gave at the door; grows with time")]
Count = Annotated[int, Field(ge=0)]


def _like(**example: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"example": example})


ENTRY = {
    "seq": 911974771715997696,
    "request_id": "task_map_7",
    "data_id": "bac78ecd804510bdac02e0db350f95adabd7eb4a",
    "state": "in flight",
    "accepted_at": "2026-11-21T13:42:09.249Z",
    "dispatched_at": "2026-11-21T13:42:09.251Z",
    "acknowledged_at": None,
    "attempts": 1,
    "reason": None,
}
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
}


class Entry(BaseModel):
    """One entry: one message of one trigger for one vehicle."""

    model_config = _like(**ENTRY)

    seq: Seq
    request_id: str
    data_id: str
    state: str = Field(description="`pending`, `parked`, `in flight`; or how it ended: `delivered`, `superseded`, `expired`, …")
    accepted_at: datetime
    dispatched_at: datetime | None = Field(description="when it was last published")
    acknowledged_at: datetime | None
    attempts: int | None = Field(description="how often it was published; null: not known")
    reason: str | None = Field(description="why it ended, where somebody said so")

    @classmethod
    def of(cls, entry: EntryHistory) -> "Entry":
        """The same as the queues, the archive and the lake tell it."""
        return cls.model_construct(
            seq=entry.seq,
            request_id=entry.request_id,
            data_id=entry.data_id,
            state=str(entry.state),
            accepted_at=entry.accepted_at,
            dispatched_at=entry.dispatched_at,
            acknowledged_at=entry.acknowledged_at,
            attempts=entry.attempts,
            reason=entry.reason,
        )


class Presence(BaseModel):
    """What is known of a vehicle's connection."""

    here: bool = Field(description="it is connected, or was heard lately")
    listening: bool = Field(description="it is here and has not unsubscribed from its messages")
    since: datetime | None = Field(description="when it connected or went; null: it was only heard")
    heard_at: datetime | None


class Vehicle(BaseModel):
    """What the queues know of a vehicle now."""

    model_config = _like(
        vin="1M8GDM9AXKP042788",
        presence={
            "here": True,
            "listening": True,
            "since": "2026-11-21T13:40:00Z",
            "heard_at": "2026-11-21T13:42:00Z",
        },
        pending=0,
        parked=0,
        in_flight=1,
        remembered=3,
        entries=[ENTRY],
        after=None,
        ended=[],
    )

    vin: str
    presence: Presence | None = Field(description="null: nothing is known of its connection")
    pending: Count = Field(description="entries that wait, those in flight left out")
    parked: Count = Field(description="entries whose data has not come")
    in_flight: Count
    remembered: Count = Field(description="entries that ended lately and that the lake may not know yet")
    entries: list[Entry] = Field(description="what waits, is parked or in flight, oldest first")
    after: Seq | None = Field(description="the next page has what comes after this seq; null: there is nothing more")
    ended: list[Entry] = Field(description="of what is remembered, the newest: as many as a page has, oldest first")


class VehicleHistory(BaseModel):
    """A page of what was sent to a vehicle, oldest first."""

    model_config = _like(vin="1M8GDM9AXKP042788", entries=[ENTRY], before=None)

    vin: str
    entries: list[Entry]
    before: Seq | None = Field(description="ask with this `before` for the next page, of older entries; null: there are none")


class Batch(BaseModel):
    """One trigger, and where its entries stand."""

    seq: Seq
    data_id: str
    accepted_at: datetime
    vehicles: Count = Field(description="how many it names")
    states: dict[str, Count] = Field(
        description="how many entries stand how; `open`: not looked at one by one, and nothing in the lake says that they ended"
    )

    @classmethod
    def of(cls, batch: BatchHistory) -> "Batch":
        """The same as history tells it."""
        return cls.model_construct(
            seq=batch.seq,
            data_id=batch.data_id,
            accepted_at=batch.accepted_at,
            vehicles=batch.vehicles,
            states={str(state): count for state, count in batch.states.items()},
        )


BATCH = {
    "seq": 911974771715997696,
    "data_id": "bac78ecd804510bdac02e0db350f95adabd7eb4a",
    "accepted_at": "2026-11-21T13:42:09.249Z",
    "vehicles": 2,
    "states": {"delivered": 1, "pending": 1},
}


class Batches(BaseModel):
    """A page of the triggers with one request_id, oldest first."""

    model_config = _like(request_id="task_map_7", batches=[BATCH], before=None)

    request_id: str
    batches: list[Batch]
    before: Seq | None = Field(description="ask with this `before` for the next page, of older triggers; null: there are none")


class Data(BaseModel):
    """What is known of data, without its bytes."""

    model_config = _like(
        data_id="bac78ecd804510bdac02e0db350f95adabd7eb4a",
        sha1="bac78ecd804510bdac02e0db350f95adabd7eb4a",
        size_bytes=10240,
        first_seen_at="2026-11-21T13:42:09.247Z",
        last_seen_at="2026-11-21T13:42:09.247Z",
        times_seen=1,
    )

    data_id: str
    sha1: str
    size_bytes: Count
    first_seen_at: datetime | None = Field(description="when it was first published; null: the queues alone know it")
    last_seen_at: datetime | None
    times_seen: Count


class LakeEntry(Entry):
    """One entry, as the lake alone knows it."""

    vin: str


class LakeEntries(BaseModel):
    """What the lake alone knows of a vehicle."""

    model_config = _like(entries=[{"vin": "1M8GDM9AXKP042788", **ENTRY}], ingested=[])

    entries: list[LakeEntry]
    ingested: list[str] = Field(description="segments that the lake has taken in since then: what they hold is in the answer")


class LakeBatch(BaseModel):
    """One trigger, as the lake alone knows it."""

    seq: Seq
    data_id: str
    vehicles: Count
    states: dict[str, Count]


class LakeTriggers(LakeEntries):
    """A page of triggers, as the lake alone knows them."""

    model_config = _like(
        batches=[{name: value for name, value in BATCH.items() if name != "accepted_at"}],
        before=None,
        told=[911974771715997696],
        entries=[],
        ingested=[],
    )

    batches: list[LakeBatch]
    before: Seq | None
    told: list[Seq] = Field(description="the triggers whose entries are all among `entries`")


class QueueStats(BaseModel):
    """Counts of all queues together, from the last walk over all keys: near, not exact."""

    model_config = _like(**QUEUE_STATS)

    age_seconds: float = Field(description="how long ago the walk began")
    at: datetime = Field(description="when it began")
    known: Count = Field(description="vehicles of whose connection something is known")
    present: Count = Field(description="of them, here and listening")
    unsubscribed: Count = Field(description="of them, here and not listening")
    queues: Count = Field(description="vehicles with something pending or in flight")
    pending: Count = Field(description="entries; those in flight left out")
    parked: Count
    in_flight: Count
    remembered: Count


class Fleet(QueueStats):
    """Vehicles by where they are, entries by where they stand."""

    model_config = _like(**QUEUE_STATS, oldest_at="2026-11-20T08:00:00Z")

    oldest_at: datetime | None = Field(description="when the oldest entry that is not acknowledged was accepted")


class Queue(BaseModel):
    """One queue that is among the longest or the oldest."""

    vin: str
    entries: Count
    oldest_at: datetime


class Queues(BaseModel):
    """The longest queues and those with the oldest entries: named by the last queue statistics, looked at again now."""

    model_config = _like(
        census=QUEUE_STATS,
        longest=[{"vin": "1M8GDM9AXKP042788", "entries": 41, "oldest_at": "2026-11-20T08:00:00Z"}],
        oldest=[{"vin": "5YJBT6ZE7T7002409", "entries": 1, "oldest_at": "2026-11-20T08:00:00Z"}],
    )

    census: QueueStats
    longest: list[Queue]
    oldest: list[Queue]


class Refused(BaseModel):
    """One message that was refused, and what became of it."""

    seq: int = Field(description="of the message; negative: a file, or a line of one")
    received_at: datetime
    stream: str = Field(description="`trigger`, `data` or `outcome`")
    topic: str
    reason: str
    state: str = Field(description="`open`, `replayed` or `dropped`")
    settled_at: datetime | None
    note: str | None
    segment: str | None = Field(description="of a replay: what brings it again")


class Quarantine(BaseModel):
    """A page of what was refused, newest first."""

    model_config = _like(
        refused=[
            {
                "seq": 912039632898621440,
                "received_at": "2026-11-21T17:59:53.301Z",
                "stream": "trigger",
                "topic": "$SDV-FANOUT/trigger",
                "reason": "ids[1] is a number (7); each VIN is a string",
                "state": "open",
                "settled_at": None,
                "note": None,
                "segment": None,
            }
        ],
        total=1,
        before=None,
    )

    refused: list[Refused]
    total: Count = Field(description="all that match, on this page and others")
    before: str | None = Field(description="ask with this `before` for the next page; null: there is none")


class Freshness(BaseModel):
    """How far the lake is behind the archive."""

    model_config = _like(oldest_not_in_lake="2026-11-21T13:42:09Z", age_seconds=74.2, late=False)

    oldest_not_in_lake: datetime | None = Field(description="when the oldest segment began that no run has taken in; null: none")
    age_seconds: float = Field(ge=0, description="its age; 0 where there is none")
    late: bool = Field(description="whether that is more than MANIFOLD_LAKE_LATE_SECONDS")
