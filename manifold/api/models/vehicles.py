"""Response models for a vehicle: its connection, and its queue."""

from datetime import datetime

from pydantic import BaseModel, Field

from manifold.api.models.entries import ENTRY, Entry
from manifold.api.models.fields import Count, Seq, Vin, example


class Presence(BaseModel):
    """What is known of a vehicle's connection."""

    here: bool = Field(description="it is connected, or was heard lately")
    listening: bool = Field(description="it is here and has not unsubscribed from its messages")
    since: datetime | None = Field(description="when it connected or went; null: it was only heard")
    heard_at: datetime | None = Field(description="when it last gave a sign; null: never")


class Vehicle(BaseModel):
    """What the queues know of a vehicle now."""

    model_config = example(
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

    vin: Vin
    presence: Presence | None = Field(description="null: nothing is known of its connection")
    pending: Count = Field(description="entries that wait, those in flight left out")
    parked: Count = Field(description="entries whose data has not come")
    in_flight: Count = Field(description="entries that are published and not yet acknowledged")
    remembered: Count = Field(description="entries that ended lately and that the lake may not know yet")
    entries: list[Entry] = Field(description="what waits, is parked or in flight, oldest first")
    after: Seq | None = Field(description="the next page has what comes after this seq; null: there is nothing more")
    ended: list[Entry] = Field(description="of what is remembered, the newest: as many as a page has, oldest first")
