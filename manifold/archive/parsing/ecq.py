"""Messages of exclusive compacted queues: writes, rewinds and acknowledgements, distinguished by topic."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pyarrow as pa

from manifold.archive.parsing.common import COMMON, Limits, Row, common_columns, refused_row, rows_of_messages, validated
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
    pa.field("key", pa.string()),  # only writes have a key
    pa.field("applied", pa.bool_()),
    pa.field("acked_seq", pa.int64()),  # a rewind has the seq before the first message that is sent again
    pa.field("epoch", pa.int64()),  # a rewind has its own seq
    pa.field("acked_ms", pa.int64()),
]
ECQ_BRIEF = pa.schema(_BRIEF)
ECQ = pa.schema([*_BRIEF, pa.field("payload", pa.binary())])  # only writes have a payload


def ecq(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse the stream into one row per message, accepted or refused."""
    return rows_of_messages(messages, ECQ, lambda message: [_row(message, validated(_parse, message, limits))])


def ecq_brief(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse the stream as `ecq` does, but into small rows without payloads: `message` is null, and there is no `payload`."""
    for batch in ecq(messages, limits):
        index = batch.schema.get_field_index("message")
        without_message = batch.set_column(index, ECQ_BRIEF.field(index), pa.nulls(batch.num_rows, pa.binary()))
        yield without_message.select(ECQ_BRIEF.names)


def _parse(message: Row, limits: Limits) -> Append | Rewind | EcqAck | Refused:
    topic, payload = message["topic"], message["payload"]
    if not topic.startswith(ACKNOWLEDGEMENTS):
        return parse_ecq(topic, payload, max_data_bytes=limits.max_data_bytes)
    try:
        return EcqAck.from_wire(payload)
    except ValueError as exc:
        return Refused(str(exc))


def _row(message: Row, content: Append | Rewind | EcqAck | Refused) -> Row:
    match content:
        case Refused():
            return refused_row(message, content.reason)
        case Append():
            is_applied = bool(message["applied"])
            columns = {"kind": EcqKind.WRITE.value, "key": content.key, "payload": content.payload, "applied": is_applied}
        case Rewind():
            acked_seq = content.first_seq - 1
            received_ms = (message["received_at"] - _UNIX_EPOCH) // _MILLISECOND
            columns = {"kind": EcqKind.REWOUND.value, "acked_seq": acked_seq, "epoch": message["seq"], "acked_ms": received_ms}
        case EcqAck():
            kind = EcqKind.EXPIRED if content.is_expired else EcqKind.ACKNOWLEDGED
            columns = {"kind": kind.value, "acked_seq": content.seq, "epoch": content.epoch, "acked_ms": content.acked_ms}
    return common_columns(message) | {"client_id": content.client_id} | columns
