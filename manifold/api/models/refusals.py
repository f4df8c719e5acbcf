"""Response models for refused messages."""

from datetime import datetime

from pydantic import BaseModel, Field

from manifold.api.models.fields import Count, example


class Refused(BaseModel):
    """One message that was refused, and what became of it."""

    seq: int = Field(description="of the message; negative: a file, or a line of one")
    received_at: datetime = Field(description="when the door received it")
    stream: str = Field(description="`trigger`, `data` or `outcome`")
    topic: str = Field(description="on which it was published")
    reason: str = Field(description="why it was refused, with the value")
    state: str = Field(description="`open`, `replayed` or `dropped`")
    settled_at: datetime | None = Field(description="when it was replayed or dropped")
    note: str | None = Field(description="what the operator said to that")
    segment: str | None = Field(description="of a replay: what brings it again")


class Quarantine(BaseModel):
    """A page of what was refused, newest first."""

    model_config = example(
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
