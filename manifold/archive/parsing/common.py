"""Shared code of the parsers: the columns of every row, and the validation of one message."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pyarrow as pa

from manifold.contracts.messages import Refused
from manifold.contracts.tables import INSTANT
from manifold.settings import Settings

BYTES_PER_BATCH = 16 << 20
BLANK = "refused; the archive gives a blank reason"

COMMON = [
    pa.field("seq", pa.int64()),
    pa.field("received_at", INSTANT),
    pa.field("topic", pa.string()),
    pa.field("reason", pa.string()),
    pa.field("message", pa.binary()),  # the payload of a refused message, and of inline data, which may be refused later
]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the parsers need of the settings: the values of the settings of the same names."""

    max_ids: int
    max_data_bytes: int
    inline_encoding: str = "base64"  # of inline data in triggers that no recorder has received

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The limits of the settings."""
        return cls(settings.max_ids, settings.max_data_bytes, settings.inline_encoding)


Parser = Callable[[pa.Table, Limits], Iterator[pa.RecordBatch]]
Row = dict[str, Any]
Parsed = TypeVar("Parsed")


def validated(validate: Callable[[Row, Limits], Parsed | Refused], message: Row, limits: Limits) -> Parsed | Refused:
    """Validate a message, which is a row of a segment: return what `validate` returns, or why the message is refused.

    A message with `refused_because` was refused before, and is not validated. An unexpected exception refuses only this message.
    """
    if message["refused_because"]:
        return Refused(message["refused_because"])
    try:
        return validate(message, limits)
    except Exception as exc:  # noqa: BLE001  # reported as the reason in quarantine
        return Refused(f"validation failed ({type(exc).__name__}), a bug in the pipelines; the payload is in quarantine")


def common_columns(message: Row) -> Row:
    """The common columns of an accepted message."""
    return {"seq": message["seq"], "received_at": message["received_at"], "topic": message["topic"], "reason": None}


def refused_row(message: Row, reason: str) -> Row:
    """Build the row of a refused message, with its payload."""
    shown_reason = reason if reason.strip() else BLANK
    return common_columns(message) | {"reason": encodable(shown_reason), "message": message["payload"]}


def encodable(text: str | None) -> str | None:
    """Replace characters that UTF-8 cannot encode: JSON escapes can spell half of a surrogate pair."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def batches(messages: pa.Table) -> Iterator[pa.RecordBatch]:
    """Split the messages into batches of about `BYTES_PER_BATCH` bytes of payloads. Yields nothing if there are no messages."""
    if messages.num_rows:
        payload_bytes = max(messages["payload"].nbytes, 1)
        messages_per_batch = max(1, messages.num_rows * BYTES_PER_BATCH // payload_bytes)
        yield from messages.to_batches(max_chunksize=messages_per_batch)


def rows_of_messages(messages: pa.Table, schema: pa.Schema, rows_of: Callable[[Row], Iterable[Row]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that `rows_of` makes of each message, in one batch for every few megabytes of messages."""
    for batch in batches(messages):
        rows = [row for message in batch.to_pylist() for row in rows_of(message)]
        yield _batch_of(rows, schema)


def _batch_of(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows to Arrow; missing columns are null."""
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
