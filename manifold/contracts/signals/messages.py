"""The messages of the vehicle platform's contract: raw signals, processed signals, device status.

Any bytes parse to a message or a refusal. Messages with the same digest are the same signal.
"""

import binascii
import hashlib
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from manifold.contracts.signals.codes import Code, Refusal

MAX_PAYLOAD = 1_048_576  # base64 characters, by the schema of raw signals
MAX_DEVICE_ID = 100
DEVICE_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_DEVICE_ID}}}")
UUID_4 = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}")
ISO_8601 = "an ISO 8601 time with its zone, such as 2024-01-01T00:00:00.000Z"
_INSTANT = re.compile(r"(\d{4}-\d{2}-\d{2}|\d{8})[Tt ](\d{2}:?\d{2}(:?\d{2}([.,]\d{1,9})?)?)([Zz]|[+-]\d{2}(:?\d{2})?)", re.ASCII)

canonical_json = msgspec.json.Encoder(order="sorted").encode  # no spaces, UTF-8: deterministic bytes

DeviceId = Annotated[str, Meta(pattern=rf"\A[A-Za-z0-9_-]{{1,{MAX_DEVICE_ID}}}\Z")]
Percent = Annotated[float, Meta(ge=0, le=100)]
Decibels = Annotated[float, Meta(ge=-120, le=0)]


class Location(Struct, frozen=True, omit_defaults=True):
    """Position of the device: degrees, and metres above sea level."""

    latitude: Annotated[float, Meta(ge=-90, le=90)]
    longitude: Annotated[float, Meta(ge=-180, le=180)]
    altitude: float | None = None


class Metadata(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Device metadata; unknown fields are ignored."""

    location: Location | None = None
    battery: Percent | None = None
    signal_strength: Decibels | None = None  # dBm


class RawSignal(Struct, frozen=True, dict=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A signal as published by a gateway. Values decoded during validation are cached."""

    device_id: DeviceId
    captured_at: str  # as sent: part of the idempotency key's digest
    payload: Annotated[str, Meta(min_length=1, max_length=MAX_PAYLOAD)]  # base64
    schema_version: str
    metadata: Metadata | None = None
    correlation_id: str | None = None

    @cached_property
    def payload_bytes(self) -> bytes:
        """The decoded payload."""
        return binascii.a2b_base64(self.payload, strict_mode=True)

    @cached_property
    def captured(self) -> datetime:
        """`captured_at` as a datetime in UTC."""
        return instant(self.captured_at)


# Model by schema version: the current version and the two before it. v2 equals v1 until it is defined.
RAW_VERSIONS: Mapping[str, type[RawSignal]] = {"v1": RawSignal, "v2": RawSignal}


class Status(StrEnum):
    """The status of a device."""

    ONLINE = "online"
    OFFLINE = "offline"
    ERROR = "error"
    MAINTENANCE = "maintenance"
    LOW_BATTERY = "low_battery"


class Health(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Device health; unknown fields are ignored."""

    battery: Percent | None = None
    signal_strength: Decibels | None = None  # dBm
    temperature: float | None = None
    uptime: Annotated[float, Meta(ge=0)] | None = None  # seconds


class DeviceStatus(Struct, frozen=True, dict=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A status message of a device."""

    device_id: DeviceId
    status: Status
    last_seen: str
    health: Health | None = None
    correlation_id: str | None = None

    @cached_property
    def seen(self) -> datetime:
        """`last_seen` as a datetime in UTC."""
        return instant(self.last_seen)


_Message = TypeVar("_Message", RawSignal, DeviceStatus)
_NO_JSON = Refusal(
    Code.MALFORMED_JSON, "the body is not JSON in UTF-8", "send one JSON object, with the fields of the schema only"
)


def instant(text: str) -> datetime:
    """Parse an ISO 8601 time with zone into a datetime in UTC, to the microsecond.

    Raises:
        ValueError: the text is not an ISO 8601 time with a zone.
    """
    if not _INSTANT.fullmatch(text):
        raise ValueError(f"not {ISO_8601}")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except OverflowError as exc:
        raise ValueError(f"not {ISO_8601}") from exc


def parse_raw(body: bytes) -> RawSignal | Refusal:
    """Parse a raw signal. The caller has checked the size of the body."""
    signal = _decode(body, RawSignal)
    if isinstance(signal, Refusal):
        return signal
    if signal.schema_version not in RAW_VERSIONS:
        return _unknown_version(signal.schema_version)
    refusal = (
        _refused_time("capturedAt", signal.captured_at, lambda: signal.captured)
        or _refused_correlation_id(signal.correlation_id)
        or _refused_payload(signal)
    )
    return refusal or signal


def parse_status(body: bytes) -> DeviceStatus | Refusal:
    """Parse a device status."""
    status = _decode(body, DeviceStatus)
    if isinstance(status, Refusal):
        return status
    refusal = _refused_time("lastSeen", status.last_seen, lambda: status.seen) or _refused_correlation_id(status.correlation_id)
    return refusal or status


def _decode(body: bytes, model: type[_Message]) -> _Message | Refusal:
    """Decode the body into a message of this model. Decoding also checks the constraints in the types of the model's fields."""
    body = body.removeprefix(BOM_UTF8)
    try:
        return msgspec.json.decode(body, type=model)
    except msgspec.ValidationError as exc:
        return _prior_refusal(body, model) or Refusal(Code.SCHEMA_ERROR, "a field is not as the schema has it", str(exc))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NO_JSON


def _prior_refusal(body: bytes, model: type[Any]) -> Refusal | None:
    """Return the refusal that takes precedence over a schema error: malformed JSON, or an unknown version; else None."""
    try:
        parsed: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return _NO_JSON
    if model is not RawSignal or not isinstance(parsed, dict):  # only raw signals have a version
        return None
    version = parsed.get("schemaVersion")
    if isinstance(version, str) and version not in RAW_VERSIONS:
        return _unknown_version(version)
    return None


def _unknown_version(version: str) -> Refusal:
    known = ", ".join(RAW_VERSIONS)
    return Refusal(Code.VERSION_ERROR, f"schema version {version[:20]!r} is not known", f"schemaVersion: send one of {known}")


def _refused_time(field: str, text: str, parse: Callable[[], datetime]) -> Refusal | None:
    """Return a refusal if the field's `text` is not a time; else None.

    `parse` parses `text`. It is the cached property of the message, so that the text is parsed only once.
    """
    try:
        parse()
    except ValueError:
        return Refusal(Code.SCHEMA_ERROR, f"{field} {text[:60]!r} is not a time", f"{field}: send {ISO_8601}")
    return None


def _refused_correlation_id(correlation_id: str | None) -> Refusal | None:
    if correlation_id is None or UUID_4.fullmatch(correlation_id):
        return None
    return Refusal(
        Code.SCHEMA_ERROR, f"correlationId {correlation_id[:60]!r} is not a UUID", "correlationId: send a UUID of version 4"
    )


def _refused_payload(signal: RawSignal) -> Refusal | None:
    try:
        is_valid = len(signal.payload) % 4 == 0 and len(signal.payload_bytes) > 0
    except (binascii.Error, ValueError):
        is_valid = False
    if is_valid:
        return None
    return Refusal(
        Code.SCHEMA_ERROR, "the payload does not decode", "payload: send base64 (RFC 4648, section 4) of one byte or more"
    )


def idempotency_key(signal: RawSignal) -> str:
    """Return the SHA-256 of the canonical JSON of deviceId, capturedAt and payload as sent; lower-case hex."""
    content = {"deviceId": signal.device_id, "capturedAt": signal.captured_at, "payload": signal.payload}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def content_digest(payload: bytes) -> str:
    """Return the SHA-256 of the decoded payload in lower-case hex.

    With device and capture time, it is the key of the lake's row.
    """
    return hashlib.sha256(payload).hexdigest()


def processed_message(
    signal: RawSignal, data: Struct | Mapping[str, Any], *, at: datetime, correlation_id: str | None = None
) -> bytes:
    """Return the processed signal as JSON.

    `data` has `readings` and `anomalies`, as the module `processing` returns them. `at` is when the signal was processed.
    `correlation_id` replaces that of the signal.
    """
    processed_at = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    message: dict[str, Any] = {
        "deviceId": signal.device_id,
        "processedAt": processed_at,
        "originalPayload": signal.payload,
        "processedData": data,
        "schemaVersion": signal.schema_version,
    }
    if stated_id := correlation_id or signal.correlation_id:
        message["correlationId"] = stated_id
    return msgspec.json.encode(message)
