"""The archive format: one envelope for every stream, and the path of every segment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa

from manifold.contracts.names import SERVICE_PREFIX
from manifold.contracts.seq import datetime_of

INLINE = "sdv-inline"  # header of an inline trigger: how the recorder decoded `data`, base64 or text
DUPLICATE_OF = "sdv-duplicate-of"  # header of a duplicate trigger: the seq of the original

SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("received_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("qos", pa.int32()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("applied", pa.bool_()),
        pa.field("refused_because", pa.string()),
    ]
)


def inline_encoding(headers: Mapping[str, str], default: str) -> str:
    """Return the encoding of the inline `data` of a trigger with these headers.

    The header `INLINE` states it. Without this header, it is base64 if other headers show that a recorder received the trigger;
    `default` if no recorder did.
    """
    if INLINE in headers:
        return headers[INLINE]
    is_from_recorder = any(name.startswith(SERVICE_PREFIX) for name in headers)
    return "base64" if is_from_recorder else default


class Stream(StrEnum):
    """One kind of archived message; the first folder of a segment's path."""

    TRIGGER = "trigger"
    DATA = "data"
    OUTCOME = "outcome"
    ECQ = "ecq"  # exclusive compacted queues: appends, rewinds and acknowledgements, distinguished by topic
    XRAY_RAW = "xray_raw"  # device signals; payloads are sealed
    XRAY_STATUS = "xray_status"  # device statuses
    CAMPAIGN = "campaign"  # orders of people and of the campaigner
    ANSWER = "answer"  # of vehicles to campaigns


@dataclass(frozen=True, slots=True)
class Envelope:
    """One archived message, unchanged, with its assigned identity."""

    seq: int
    received_at: datetime  # UTC
    stream: Stream
    topic: str
    payload: bytes
    qos: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)  # the publisher's user properties, and Manifold's own `sdv-…`
    applied: bool = False  # enqueued directly
    refused_because: str | None = None

    @property
    def duplicate_of(self) -> int | None:
        """The seq of the trigger that this trigger repeats.

        None if it repeats none; 0 if the header is invalid (foreign archives).
        """
        seq = self.headers.get(DUPLICATE_OF)
        try:
            return None if seq is None else int(seq)
        except ValueError:
            return 0


def segment_path(stream: Stream, first_seq: int, node: int) -> str:
    """Return the path of a segment, relative to the archive's root; the hour is that of its first seq."""
    at = datetime_of(first_seq)
    return f"{stream}/dt={at:%Y-%m-%d}/hour={at:%H}/{first_seq}-{node}.parquet"


def hour_folder(stream: Stream, instant: datetime) -> str:
    """Return the folder of segments whose first seq falls into the hour of `instant`."""
    at = instant.astimezone(UTC)
    return f"{stream}/dt={at:%Y-%m-%d}/hour={at:%H}"


def to_arrow(envelopes: Iterable[Envelope]) -> pa.Table:
    """Return the rows of a segment in the given order; pass envelopes in seq order."""
    rows = list(envelopes)  # the table is built by columns, because building it by rows takes three times as long
    columns: list[list[Any]] = [
        [e.seq for e in rows],
        [e.received_at for e in rows],
        [e.stream.value for e in rows],
        [e.topic for e in rows],
        [e.payload for e in rows],
        [e.qos for e in rows],
        [list(e.headers.items()) for e in rows],
        [e.applied for e in rows],
        [e.refused_because for e in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SEGMENT_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SEGMENT_SCHEMA)


def from_arrow(table: pa.Table) -> list[Envelope]:
    """Return the envelopes of a segment, in order."""
    return [
        Envelope(
            seq=row["seq"],
            received_at=row["received_at"],
            stream=Stream(row["stream"]),
            topic=row["topic"],
            payload=row["payload"],
            qos=row["qos"],
            headers=dict(row["headers"] or ()),
            applied=bool(row["applied"]),
            refused_because=row["refused_because"],
        )
        for row in table.to_pylist()
    ]
