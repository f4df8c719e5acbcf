"""Response models for a compacted queue, and the body of a rewind."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from manifold.api.models.fields import Count, MirrorModel, Seq, example
from manifold.contracts.ecq import EARLIEST, REWIND_RULE, rewind_target
from manifold.contracts.messages import SHOWN
from manifold.contracts.seq import MAX_SEQ

MESSAGE = {
    "key": "climate/seat",
    "seq": 911974771715997696,
    "ts": "2026-11-21T13:42:09.249Z",
    "size_bytes": 120,
    "state": "pending",
}
# The accepted times, as far as a pattern can express them: it cannot handle leap years.
_TIME = (
    r"^20[2-9][0-9]-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    r"(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])$"
)
_TARGET = {
    "description": f"`{EARLIEST}`, a `seq`, or an ISO 8601 time with its zone: the first message that is sent again",
    "anyOf": [
        {"const": EARLIEST, "type": "string"},
        {"type": "string", "pattern": "^[0-9]{1,18}$"},
        {"type": "string", "pattern": _TIME},
        {"type": "integer", "minimum": 0, "maximum": MAX_SEQ},
    ],
}


def _rewind_text(value: object) -> str:
    """Return a rewind target as the text that is published. A seq may be a number, also one such as 7.0, which JSON allows.

    Raises:
        ValueError: `value` is not a rewind target.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_text_or_seq = isinstance(value, str | int) and not isinstance(value, bool)
    text = str(value) if is_text_or_seq else ""  # the empty text is refused
    if len(text) > SHOWN or rewind_target(text) is None:
        raise ValueError(f"is not a position to rewind to; {REWIND_RULE}")
    return text.strip()


class LiveMessage(MirrorModel):
    """The newest message of a key."""

    model_config = example(**MESSAGE)

    key: str = Field(description="of the message")
    seq: Seq
    ts: datetime = Field(description="when it was accepted")
    size_bytes: Count | None = Field(description="of its payload; null: not known")
    state: str = Field(description="`pending`, `in flight`, `delivered`, or `expired`: it is not sent any more")
    ended_at: datetime | None = Field(
        default=None, exclude_if=lambda at: at is None, description="when it expired; only of such a message"
    )
    reason: str | None = Field(
        default=None, exclude_if=lambda why: why is None, description="why it expired; only of such a message"
    )


class CompactedQueue(MirrorModel):
    """A page of a client's compacted queue: the newest message of each key, oldest first."""

    model_config = example(
        client_id="1M8GDM9AXKP042788",
        last_seq=911974771715997696,
        acked_seq=911974771715997000,
        acked_at="2026-11-21T13:40:00Z",
        entries=[MESSAGE],
        after=None,
    )

    client_id: str = Field(description="the client whose queue it is")
    last_seq: Seq | None = Field(description="the greatest `seq` of a message; null: none is known")
    acked_seq: Seq | None = Field(description="the position: the greatest that was acknowledged, or what a rewind left of it")
    acked_at: datetime | None = Field(description="when it last moved on")
    entries: list[LiveMessage]
    after: Seq | None = Field(description="the next page has what comes after this seq; null: there is nothing more")


class RewindTo(BaseModel):
    """From where a queue is to be sent again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"to": EARLIEST}})

    to: Annotated[str, PlainValidator(_rewind_text), WithJsonSchema(_TARGET)]


class Rewound(BaseModel):
    """A rewind that is on disk; it is applied right after."""

    model_config = example(client_id="1M8GDM9AXKP042788", seq=911974771715997800, first_seq=0)

    client_id: str = Field(description="the client whose queue it is")
    seq: Seq
    first_seq: Seq = Field(description="of the first message that is sent again")
