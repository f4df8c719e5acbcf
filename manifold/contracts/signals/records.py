"""Journal and archive records of the AMQP door: metadata in plaintext, the payload sealed (`manifold.lake.sealing`)."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.signals.codes import Refusal
from manifold.contracts.signals.messages import DeviceStatus, Health, Metadata, RawSignal, content_digest, idempotency_key

TOPICS = {Stream.XRAY_RAW: "xray.raw.v1", Stream.XRAY_STATUS: "device.status.v1"}  # routing key; `/` and the device follow
DIGEST = "sdv-digest"  # header of a refused message: a digest that is stable across redeliveries
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class RawRecord(Struct, frozen=True, array_like=True, gc=False):
    """A raw signal in the archive."""

    device_id: str
    captured_us: int  # since 1970 UTC
    content_digest: str
    idempotency_key: str
    schema_version: str
    correlation_id: str | None
    sealed: bytes  # the decoded payload
    latitude: float | None = None
    longitude: float | None = None
    altitude: float | None = None
    battery: float | None = None
    signal_strength: float | None = None


class StatusRecord(Struct, frozen=True, array_like=True, gc=False):
    """A device status in the archive; it has no payload."""

    device_id: str
    status: str
    seen_us: int  # since 1970 UTC
    correlation_id: str | None = None
    battery: float | None = None
    signal_strength: float | None = None
    temperature: float | None = None
    uptime: float | None = None


_encode = msgspec.msgpack.Encoder().encode
read_raw = msgspec.msgpack.Decoder(RawRecord).decode  # raises msgspec.DecodeError
read_status = msgspec.msgpack.Decoder(StatusRecord).decode  # raises msgspec.DecodeError


def raw_envelope(
    seq: int,
    received_at: datetime,
    signal: RawSignal,
    sealed: bytes,
    *,
    payload: bytes,
    key: str | None = None,
    correlation_id: str | None = None,
) -> Envelope:
    """Build the envelope of a raw signal.

    `payload` is the decoded payload, of which the record has a digest, and `sealed` is the same, encrypted. `key` is the
    idempotency key; without it, the key is derived from the signal. `correlation_id` is used if the signal itself states none.
    """
    metadata = signal.metadata or Metadata()
    location = metadata.location
    record = RawRecord(
        device_id=signal.device_id,
        captured_us=micros(signal.captured),
        content_digest=content_digest(payload),
        idempotency_key=key or idempotency_key(signal),
        schema_version=signal.schema_version,
        correlation_id=signal.correlation_id or correlation_id,
        sealed=sealed,
        latitude=location.latitude if location else None,
        longitude=location.longitude if location else None,
        altitude=location.altitude if location else None,
        battery=metadata.battery,
        signal_strength=metadata.signal_strength,
    )
    return _envelope(seq, received_at, Stream.XRAY_RAW, signal.device_id, _encode(record))


def status_envelope(seq: int, received_at: datetime, status: DeviceStatus, *, correlation_id: str | None = None) -> Envelope:
    """Build the envelope of a device status. `correlation_id` is used if the status itself states none."""
    health = status.health or Health()
    record = StatusRecord(
        device_id=status.device_id,
        status=status.status.value,
        seen_us=micros(status.seen),
        correlation_id=status.correlation_id or correlation_id,
        battery=health.battery,
        signal_strength=health.signal_strength,
        temperature=health.temperature,
        uptime=health.uptime,
    )
    return _envelope(seq, received_at, Stream.XRAY_STATUS, status.device_id, _encode(record))


def refused_envelope(
    seq: int,
    received_at: datetime,
    stream: Stream,
    refusal: Refusal,
    sealed: bytes,
    *,
    devices: Sequence[str] = (),
    digest: str | None = None,
) -> Envelope:
    """Build the envelope of a refused message: the reason, and the whole body, sealed.

    `devices` are the device ids that the message states, by which an erasure finds it. `digest` is stable across redeliveries.
    """
    headers = {} if digest is None else {DIGEST: digest}
    return Envelope(seq, received_at, stream, topic_of(stream, *devices), sealed, headers=headers, refused_because=refusal.reason)


def topic_of(stream: Stream, *devices: str) -> str:
    """Return the archive topic of a message. It contains the device ids, so that a device is found without decoding records."""
    return "/".join((TOPICS[stream], *devices))


def status_digest(record: StatusRecord) -> str:
    """Return the SHA-256 of a status, lower-case hex; independent of correlation id and redeliveries."""
    return hashlib.sha256(_encode(msgspec.structs.replace(record, correlation_id=None))).hexdigest()


def micros(at: datetime) -> int:
    """Return microseconds since 1970 UTC."""
    return (at - _UNIX_EPOCH) // _MICROSECOND


def _envelope(seq: int, received_at: datetime, stream: Stream, device_id: str, payload: bytes) -> Envelope:
    return Envelope(seq, received_at, stream, topic_of(stream, device_id), payload)
