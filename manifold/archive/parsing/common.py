"""What the parsers share: the columns of every row, and the judgement of one message."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from manifold.contracts.messages import Refused
from manifold.contracts.tables import INSTANT

BYTES_PER_BATCH = 16 << 20
BLANK = "refused; the archive gives a blank reason"

COMMON = [
    pa.field("seq", pa.int64()),
    pa.field("received_at", INSTANT),
    pa.field("topic", pa.string()),
    pa.field("reason", pa.string()),
    pa.field("message", pa.binary()),  # the payload of what is refused, or may be
]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one message may hold, and how it is read; the settings of the same names, and `inline_encoding`."""

    max_ids: int
    max_data_bytes: int
    inline: str = "base64"  # what data in a trigger is that no recorder has had


Parser = Callable[[pa.Table, Limits], Iterator[pa.RecordBatch]]
Row = dict[str, Any]
Said = TypeVar("Said")


def judged(judge: Callable[[Row, Limits], Said | Refused], row: Row, limits: Limits) -> Said | Refused:
    """The judgement of a row. An exception refuses this one message, and not the others."""
    if row["refused_because"]:
        return Refused(row["refused_because"])
    try:
        return judge(row, limits)
    except Exception as exc:  # noqa: BLE001  # the reason names it, in quarantine
        return Refused(f"judging it failed ({type(exc).__name__}), which is a fault of the pipelines; its bytes are kept")


def common(row: Row) -> Row:
    """The first columns of an accepted message."""
    return {"seq": row["seq"], "received_at": row["received_at"], "topic": row["topic"], "reason": None}


def refused(row: Row, reason: str) -> Row:
    """The row of a refused message, with its bytes."""
    shown_reason = reason if reason.strip() else BLANK
    return common(row) | {"reason": text(shown_reason), "message": row["payload"]}


def text(value: str | None) -> str | None:
    """Text that UTF-8 can hold: JSON's escapes can name half a character."""
    return None if value is None else value.encode("utf-8", "replace").decode()


def batches(messages: pa.Table) -> Iterator[pa.RecordBatch]:
    """The messages, some megabytes at a time."""
    if messages.num_rows:
        rows = max(1, messages.num_rows * BYTES_PER_BATCH // max(messages["payload"].nbytes, 1))
        yield from messages.to_batches(max_chunksize=rows)


def parsed(messages: pa.Table, schema: pa.Schema, rows_of: Callable[[Row], Iterable[Row]]) -> Iterator[pa.RecordBatch]:
    """The rows that `rows_of` makes of each message, some megabytes of messages at a time."""
    for batch in batches(messages):
        yield _batch_of([made for row in batch.to_pylist() for made in rows_of(row)], schema)


def _batch_of(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as Arrow; columns left out are null."""
    return pa.RecordBatch.from_arrays([pa.array([row.get(f.name) for row in rows], f.type) for f in schema], schema=schema)
