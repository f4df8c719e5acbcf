"""Response models for dead letters of signals, and for the keys that seal signals."""

from datetime import date
from typing import Any

from pydantic import BaseModel, Field

from manifold.api.models.fields import Count, example

LETTER: dict[str, Any] = {
    "place": 1,
    "code": "STALE_ERROR",
    "device_id": "device-123",
    "correlation_id": "550e8400-e29b-41d4-a716-446655440000",
    "error": {
        "code": "STALE_ERROR",
        "message": "the message was signed too long ago",
        "details": "x-timestamp-auth: sign it anew",
        "timestamp": "2026-11-21T13:42:09.249Z",
        "correlationId": "550e8400-e29b-41d4-a716-446655440000",
        "retryCount": 0,
    },
    "bytes": 214,
    "headers": {"x-correlation-id": "550e8400-e29b-41d4-a716-446655440000", "x-queue": "xray.raw.v1"},
    "would_be": "STALE_ERROR",
}
KEY: dict[str, Any] = {
    "key_id": "2026-11-21.0f1e2d3c4b5a",
    "day": "2026-11-21",
    "ring_id": "k1",
    "in_ring": True,
    "wrapped_at": "2026-11-21T00:00:01+00:00",
}


class DeadLetter(BaseModel):
    """One message that the AMQP door has refused."""

    model_config = example(**LETTER)

    place: int = Field(ge=1, description="in the queue; the oldest is 1")
    code: str = Field(description="why it lies there; `EXPIRED`: it waited too long, and no door has seen it")
    device_id: str | None = Field(description="that body or headers claim, unproved; null: none does")
    correlation_id: str | None = Field(description="that body or headers claim")
    error: dict[str, Any] = Field(description="the contract's error, as the header `x-error` has it")
    bytes: Count = Field(description="of its body")
    headers: dict[str, str] = Field(description="of the message, as text")
    would_be: str = Field(description="what the door would make of it now: `accepted`, or a code; Redis is not asked")


class WholeDeadLetter(DeadLetter):
    """One of them, with its body."""

    model_config = example(**LETTER, body='{"deviceId": "device-123"}')

    body: str = Field(description="as it came; a byte that is no UTF-8 is shown as the replacement character")


class DeadLetters(BaseModel):
    """Dead letters, the oldest first."""

    model_config = example(dead_letters=[LETTER], whole=True)

    dead_letters: list[DeadLetter]
    whole: bool = Field(description="whether these are all; false: there are more, or those before were too large")


class SignalKey(BaseModel):
    """A day's key, wrapped."""

    model_config = example(**KEY)

    key_id: str = Field(description="the name of the key")
    day: date = Field(description="whose signals it seals")
    ring_id: str = Field(description="the key of the ring that wraps it")
    in_ring: bool = Field(description="whether the ring has that key; if not, the day's signals cannot be read")
    wrapped_at: str = Field(description="when it was last wrapped, ISO 8601")


class SignalKeys(BaseModel):
    """The keys of days, and the ids of the key ring."""

    model_config = example(ring=["k1"], keys=[KEY])

    ring: list[str] = Field(description="ids, the current one first")
    keys: list[SignalKey]
