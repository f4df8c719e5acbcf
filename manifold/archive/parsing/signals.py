"""Messages of X-ray signals: records of raw signals, and status records of devices."""

import re
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from manifold.archive.parsing.columns import fields_of, rows_of, validate_all
from manifold.archive.parsing.common import COMMON, Limits, Row, batches, refused_row
from manifold.contracts.messages import LATEST_MS, Refused
from manifold.contracts.signals.messages import DEVICE_ID, Status
from manifold.contracts.signals.records import DIGEST, RawRecord, StatusRecord, read_raw, read_status, status_digest
from manifold.lake.sealing import Broken, key_id_of

_HEX_256 = re.compile(r"[0-9a-f]{64}")
_EARLIEST_US = -62_135_596_800_000_000  # the first microsecond of the year 1
_MEASURED = ("latitude", "longitude", "altitude", "battery", "signal_strength")

_DEVICE_COLUMNS = [
    *COMMON,
    pa.field("digest", pa.string()),  # only refused messages have it; every redelivery of a message has the same digest
    pa.field("device_id", pa.string()),
]
SIGNALS = pa.schema(
    [
        *_DEVICE_COLUMNS,
        pa.field("captured_us", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("content_digest", "schema_version", "correlation_id", "idempotency_key")),
        *(pa.field(name, pa.float64()) for name in _MEASURED),
        pa.field("key_id", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)
STATUSES = pa.schema(
    [
        *_DEVICE_COLUMNS,
        pa.field("seen_us", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("correlation_id", pa.string()),
        *(pa.field(name, pa.float64()) for name in ("battery", "signal_strength", "temperature", "uptime")),
        pa.field("content_digest", pa.string()),
    ]
)


def signals(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse raw signals into one row per message, accepted or refused; payloads stay sealed."""
    return (signal_rows(part, raw_records(part, limits)) for part in batches(messages))


def signal_rows(messages: pa.RecordBatch, parsed: Sequence[RawRecord | Refused]) -> pa.RecordBatch:
    """Build one row per message; `parsed` are the results of `raw_records` for these messages, of which there is at least one."""
    fields = fields_of(parsed, RawRecord)
    sealed_payloads = fields.pop("sealed")
    key_ids = [None if sealed is None else key_id_of(sealed) for sealed in sealed_payloads]
    columns = {**fields, "payload": sealed_payloads, "key_id": key_ids}
    return rows_of(messages, parsed, columns, SIGNALS, _refused_row)


def statuses(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse status messages into one row per message, accepted or refused."""
    for part in batches(messages):
        parsed = validate_all(_status, part, limits)
        digests = [status_digest(record) if isinstance(record, StatusRecord) else None for record in parsed]
        columns = {**fields_of(parsed, StatusRecord), "content_digest": digests}
        yield rows_of(part, parsed, columns, STATUSES, _refused_row)


def raw_records(messages: pa.RecordBatch, limits: Limits) -> list[RawRecord | Refused]:
    """Parse each message into a raw record, or the reason for its refusal."""
    return validate_all(_raw, messages, limits)


def _raw(message: Row, _: Limits) -> RawRecord | Refused:
    try:
        record = read_raw(message["payload"])
        key_id_of(record.sealed)  # raises `Broken` if the payload is not sealed
    except msgspec.MsgspecError as exc:
        return Refused(f"not a valid record of a signal: {exc}")
    except Broken as exc:
        return Refused(f"not a valid record of a signal: {exc}; its payload must be sealed")
    if not _HEX_256.fullmatch(record.content_digest):
        return Refused("not a valid record of a signal: content_digest is not a SHA-256 in lower-case hex")
    return _refusal_of(record.device_id, record.captured_us) or record


def _status(message: Row, _: Limits) -> StatusRecord | Refused:
    try:
        record = read_status(message["payload"])
    except msgspec.MsgspecError as exc:
        return Refused(f"not a valid record of a device's status: {exc}")
    if record.status not in tuple(Status):
        return Refused(f"not a valid record of a device's status: status is not one of {', '.join(Status)}")
    return _refusal_of(record.device_id, record.seen_us) or record


def _refusal_of(device_id: str, time_us: int) -> Refused | None:
    """Why a record is refused with this device id and this time (microseconds since 1970); None if both are valid."""
    if not DEVICE_ID.fullmatch(device_id):
        return Refused("not a valid record of a signal: device_id must be 1 to 100 of A-Z a-z 0-9 _ -")
    if not _EARLIEST_US <= time_us <= LATEST_MS * 1000:
        return Refused("not a valid record of a signal: its time is outside the years 1 to 9999")
    return None


def _refused_row(message: Row, reason: str) -> Row:
    headers = dict(message["headers"] or ())
    return refused_row(message, reason) | {"digest": headers.get(DIGEST)}
