"""Messages of X-ray signals: records of raw signals, what processing makes of their payloads, and devices' status."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from adapters.day_keys import DayKeys
from adapters.key_ring import KeyIsGone
from adapters.sealing import Broken, parts_of
from archive.parsing.common import COMMON, LATEST_MS, Limits, Row, batch_of, chunks, common, judged, refused
from contracts.errors import SettingsError
from contracts.messages import Refused
from contracts.settings import Settings
from contracts.signals.bounds import Bounds, read_bounds
from contracts.signals.messages import DEVICE_ID, Status
from contracts.signals.processing import RULES, process
from contracts.signals.records import DIGEST, RawRecord, StatusRecord, read_raw, read_status, status_digest
from contracts.tables import XRAY_PROCESSED

_HEX_256 = re.compile(r"[0-9a-f]{64}")
_EARLIEST_US = -62_135_596_800_000_000  # the first microsecond of the year 1
_ABOUT = ("schema_version", "correlation_id")
_MEASURED = ("latitude", "longitude", "altitude", "battery", "signal_strength")

_DIGEST = pa.field("digest", pa.string())  # of what is refused: the same however often it is delivered
_SIGNAL = [
    *COMMON,
    _DIGEST,
    pa.field("device_id", pa.string()),
    pa.field("captured_us", pa.int64()),
    pa.field("content_digest", pa.string()),
]
SIGNALS_BRIEF = pa.schema(_SIGNAL)
SIGNALS = pa.schema(
    [
        *_SIGNAL,
        *(pa.field(name, pa.string()) for name in (*_ABOUT, "idempotency_key")),
        *(pa.field(name, pa.float64()) for name in _MEASURED),
        pa.field("key_id", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)
PROCESSED = pa.schema(
    [
        *_SIGNAL,
        *(pa.field(name, pa.string()) for name in _ABOUT),
        *(XRAY_PROCESSED.arrow_schema.field(name).remove_metadata() for name in ("readings", "anomalies")),
        pa.field("anomaly_types", pa.string()),
        pa.field("rules", pa.int32()),
        pa.field("problem", pa.string()),
    ]
)
STATUSES = pa.schema(
    [
        *COMMON,
        _DIGEST,
        pa.field("device_id", pa.string()),
        pa.field("seen_us", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("correlation_id", pa.string()),
        *(pa.field(name, pa.float64()) for name in ("battery", "signal_strength", "temperature", "uptime")),
        pa.field("content_digest", pa.string()),
    ]
)


def signals(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """One row for each message, accepted or refused; payloads stay sealed."""
    for chunk in chunks(messages):
        yield batch_of([_row(row, judged(_raw, row, limits), _whole) for row in chunk], SIGNALS)


def signals_brief(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """The keys of the same, and no message's bytes."""
    for chunk in chunks(messages):
        rows = [_row(row, judged(_raw, row, limits), _key) | {"message": None} for row in chunk]
        yield batch_of(rows, SIGNALS_BRIEF)


def statuses(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """One row for each message about a device, accepted or refused."""
    for chunk in chunks(messages):
        yield batch_of([_row(row, judged(_status, row, limits), _about_device) for row in chunk], STATUSES)


@dataclass(frozen=True, slots=True)
class Processing:
    """The parser that opens payloads and processes them: one row for each accepted raw signal, and none for others."""

    keys: DayKeys | None  # None: there is no key ring
    bounds: Bounds

    @classmethod
    def of(cls, settings: Settings) -> "Processing":
        """With the keys and bounds of the settings.

        Without a usable key ring payloads stay unread, and the rows say so: other streams of a run need no keys.
        """
        try:
            keys = DayKeys.of(settings)
        except SettingsError:
            keys = None
        return cls(keys, read_bounds(settings.signals_bounds))

    def __call__(self, messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
        """The rows.

        Raises:
            OSError: the storage of keys failed.
        """
        for chunk in chunks(messages):
            found = ((row, judged(_raw, row, limits)) for row in chunk)
            rows = [common(row) | self.processed(row["seq"], record) for row, record in found if isinstance(record, RawRecord)]
            yield batch_of(rows, PROCESSED)

    def processed(self, seq: int, record: RawRecord) -> Row:
        """What is made of one record."""
        about = {name: getattr(record, name) for name in _ABOUT}
        return _key(record) | about | self.made_of(seq, record.sealed)

    def made_of(self, seq: int, sealed: bytes) -> Row:
        """Readings, anomalies and rules, of one sealed payload; or the problem."""
        row: Row = {"readings": [], "anomalies": [], "anomaly_types": "", "rules": RULES, "problem": None}
        if self.keys is None:
            return row | {"problem": "the key ring cannot be read"}
        try:
            data = process(self.keys.open(sealed, seq=seq), self.bounds).to_builtins()
        except (KeyIsGone, Broken) as exc:
            return row | {"problem": str(exc)}
        kinds: set[str] = {anomaly["type"] for anomaly in data["anomalies"]}
        return row | data | {"anomaly_types": ",".join(sorted(kinds))}


def _raw(row: Row, _: Limits) -> RawRecord | Refused:
    try:
        record = read_raw(row["payload"])
        parts_of(record.sealed)
    except msgspec.MsgspecError as exc:
        return Refused(f"no record of a signal: {exc}")
    except Broken as exc:
        return Refused(f"no record of a signal: {exc}; its payload has to be sealed")
    if not _HEX_256.fullmatch(record.content_digest):
        return Refused("no record of a signal: content_digest is no SHA-256 in lower-case hex")
    return _misnamed(record.device_id, record.captured_us) or record


def _status(row: Row, _: Limits) -> StatusRecord | Refused:
    try:
        record = read_status(row["payload"])
    except msgspec.MsgspecError as exc:
        return Refused(f"no record of a device's status: {exc}")
    if record.status not in tuple(Status):
        return Refused(f"no record of a device's status: status is none of {', '.join(Status)}")
    return _misnamed(record.device_id, record.seen_us) or record


def _misnamed(device_id: str, at_us: int) -> Refused | None:
    if not DEVICE_ID.fullmatch(device_id):
        return Refused("no record of a signal: device_id has 1 to 100 of A-Z a-z 0-9 _ -")
    if not _EARLIEST_US <= at_us <= LATEST_MS * 1000:
        return Refused("no record of a signal: its instant is in no year from 1 to 9999")
    return None


def _row(row: Row, said: Any, columns_of: Any) -> Row:
    if isinstance(said, Refused):
        return refused(row, said.reason) | {"digest": dict(row["headers"] or ()).get(DIGEST)}
    found: Row = common(row) | columns_of(said)
    return found


def _key(record: RawRecord) -> Row:
    return {"device_id": record.device_id, "captured_us": record.captured_us, "content_digest": record.content_digest}


def _about_device(record: StatusRecord) -> Row:
    return msgspec.structs.asdict(record) | {"content_digest": status_digest(record)}


def _whole(record: RawRecord) -> Row:
    found: Row = msgspec.structs.asdict(record)
    return found | {"payload": found.pop("sealed"), "key_id": parts_of(record.sealed).key_id}
