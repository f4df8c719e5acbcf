"""Response models for entries, batches and data: what was sent to vehicles, and with which outcome."""

from datetime import datetime

from pydantic import BaseModel, Field

from manifold.api.models.fields import AcceptedAt, Count, DataId, MirrorModel, RequestId, Seq, Vin, example

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
BATCH = {
    "seq": 911974771715997696,
    "data_id": "bac78ecd804510bdac02e0db350f95adabd7eb4a",
    "accepted_at": "2026-11-21T13:42:09.249Z",
    "vehicles": 2,
    "states": {"delivered": 1, "pending": 1},
}


class Entry(MirrorModel):
    """One entry: one message of one trigger for one vehicle."""

    model_config = example(**ENTRY)

    seq: Seq
    request_id: RequestId
    data_id: DataId
    state: str = Field(description="`pending`, `parked`, `in flight`; or how it ended: `delivered`, `superseded`, `expired`, …")
    accepted_at: AcceptedAt
    dispatched_at: datetime | None = Field(description="when it was last published")
    acknowledged_at: datetime | None = Field(description="when the vehicle acknowledged it")
    attempts: int | None = Field(description="how often it was published; null: not known")
    reason: str | None = Field(description="why it ended, where somebody said so")


class VehicleHistory(BaseModel):
    """A page of what was sent to a vehicle, oldest first."""

    model_config = example(vin="1M8GDM9AXKP042788", entries=[ENTRY], before=None)

    vin: Vin
    entries: list[Entry]
    before: Seq | None = Field(description="ask with this `before` for the next page, of older entries; null: there are none")


class Batch(MirrorModel):
    """One trigger, and where its entries stand."""

    seq: Seq
    data_id: DataId
    accepted_at: AcceptedAt
    vehicles: Count = Field(description="how many it names")
    states: dict[str, Count] = Field(
        description="how many entries stand how; `open`: not looked at one by one, and nothing in the lake says that they ended"
    )


class Batches(BaseModel):
    """A page of the triggers with one request_id, oldest first."""

    model_config = example(request_id="task_map_7", batches=[BATCH], before=None)

    request_id: RequestId
    batches: list[Batch]
    before: Seq | None = Field(description="ask with this `before` for the next page, of older triggers; null: there are none")


class Data(BaseModel):
    """What is known of data, without its bytes."""

    model_config = example(
        data_id="bac78ecd804510bdac02e0db350f95adabd7eb4a",
        sha1="bac78ecd804510bdac02e0db350f95adabd7eb4a",
        size_bytes=10240,
        first_seen_at="2026-11-21T13:42:09.247Z",
        last_seen_at="2026-11-21T13:42:09.247Z",
        times_seen=1,
    )

    data_id: DataId
    sha1: str = Field(description="of its bytes, 40 hexadecimal digits")
    size_bytes: Count = Field(description="of its bytes")
    first_seen_at: datetime | None = Field(description="when it was first published; null: the queues alone know it")
    last_seen_at: datetime | None = Field(description="when it was last published")
    times_seen: Count = Field(description="how often it was published")
