"""Messages of exclusive compacted queues: writes, rewinds and acknowledgements, distinguished by topic."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common, refused, rows_of_messages, validated
from manifold.contracts.ecq import Append, EcqAck, Rewind, parse_ecq
from manifold.contracts.keys import OUTCOMES
from manifold.contracts.messages import Refused
from manifold.contracts.queue_names import Flavour

ACKNOWLEDGEMENTS = f"{OUTCOMES}/{Flavour.ECQ}/"  # topic prefix of acknowledgements in the archive

_UNIX_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class EcqKind(StrEnum):
    """The kind of a message of the stream `ecq`."""

    WRITE = "write"
    REWOUND = "rewound"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"


_BRIEF = [
    *COMMON,
    pa.field("kind", pa.string()),
    pa.field("client_id", pa.string()),
    pa.field("key", pa.string()),  # of a write
    pa.field("applied", pa.bool_()),
    pa.field("acked_seq", pa.int64()),  # of a rewind: the seq before the first one sent again
    pa.field("epoch", pa.int64()),  # of a rewind: its own seq
    pa.field("acked_ms", pa.int64()),
]
ECQ_BRIEF = pa.schema(_BRIEF)
ECQ = pa.schema([*_BRIEF, pa.field("payload", pa.binary())])  # of a write


def ecq(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse the stream into one row per message, accepted or refused."""
    return rows_of_messages(messages, ECQ, lambda row: [_row(row, validated(_content, row, limits))])


def ecq_brief(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """As `ecq`, without the messages' bytes."""
    for batch in ecq(messages, limits):
        place = batch.schema.get_field_index("message")
        yield batch.set_column(place, ECQ_BRIEF.field(place), pa.nulls(batch.num_rows, pa.binary())).select(ECQ_BRIEF.names)


def _content(row: Row, limits: Limits) -> Append | Rewind | EcqAck | Refused:
    topic, payload = row["topic"], row["payload"]
    if not topic.startswith(ACKNOWLEDGEMENTS):
        return parse_ecq(topic, payload, max_data_bytes=limits.max_data_bytes)
    try:
        return EcqAck.from_wire(payload)
    except ValueError as exc:
        return Refused(str(exc))


def _row(row: Row, content: Append | Rewind | EcqAck | Refused) -> Row:
    match content:
        case Refused():
            return refused(row, content.reason)
        case Append():
            of = {"kind": EcqKind.WRITE.value, "key": content.key, "payload": content.payload, "applied": bool(row["applied"])}
        case Rewind():
            at_ms = (row["received_at"] - _UNIX_EPOCH) // _MILLISECOND
            of = {"kind": EcqKind.REWOUND.value, "acked_seq": content.first_seq - 1, "epoch": row["seq"], "acked_ms": at_ms}
        case EcqAck():
            kind = EcqKind.EXPIRED if content.is_expired else EcqKind.ACKNOWLEDGED
            of = {"kind": kind.value, "acked_seq": content.seq, "epoch": content.epoch, "acked_ms": content.acked_ms}
    return common(row) | {"client_id": content.client_id} | of
