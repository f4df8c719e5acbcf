"""Message checks that need no server, in order: size, JSON, schema and version, headers, signature, freshness. Pure."""

import hashlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.messages import UUID_4, DeviceStatus, RawSignal, idempotency_key, parse_raw, parse_status
from manifold.settings import Settings
from manifold.signals._freshness import check_freshness
from manifold.signals._received import CORRELATION, DEVICE, IDEMPOTENCY, NONCE, TIMESTAMP, VERSION, Accepted, Judged, Received
from manifold.signals._signature import check_signature

AROUND_PAYLOAD = 64 << 10  # bytes allowed besides the payload
JSON_TYPES = ("application/json", "text/json")
_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class Checks:
    """Limits and secrets that messages are checked against."""

    secrets: Sequence[str]
    tolerance_s: float = 300.0  # by how much the sender's clock may deviate
    nonce_s: float = 3600.0  # the maximum age of a signed timestamp; nonces are kept for longer
    max_payload: int = 1 << 20  # characters of a signal's payload

    @classmethod
    def of(cls, settings: Settings, secrets: Sequence[str]) -> "Checks":
        """Build the checks from the settings."""
        return cls(secrets, settings.signals_tolerance_seconds, settings.signals_nonce_seconds, settings.signals_max_payload)

    @property
    def max_bytes(self) -> int:
        """Maximum body size in bytes, compressed and inflated alike."""
        return self.max_payload + AROUND_PAYLOAD

    def judge(self, received: Received, now: datetime) -> Judged:
        """Return the accepted message, or the refusal of the first check that fails. `now` is the time to judge freshness by."""
        body = inflated(received, self.max_bytes)
        if isinstance(body, Refusal):
            return body
        parsed = parse_status(body) if received.is_status else parse_raw(body)
        if isinstance(parsed, Refusal):
            return parsed
        if isinstance(parsed, RawSignal) and len(parsed.payload) > self.max_payload:
            return Refusal(Code.SIZE_ERROR, "the payload is too large", f"payload: at most {self.max_payload} characters")
        if refusal := check_headers(received, parsed) or self._check_sender(received, parsed.device_id, now):
            return refusal
        return _accepted(received, parsed, body, signed=bool(self.secrets))

    def _check_sender(self, received: Received, device_id: str, now: datetime) -> Refusal | None:
        """Check signature and freshness; return the refusal, or None.

        Without secrets, signatures are off and nothing is checked.
        """
        if not self.secrets:
            return None
        if refusal := check_signature(received, device_id, self.secrets):
            return refusal
        max_wait_s = received.max_wait_s + (now - received.at) / timedelta(seconds=1)
        if received.redelivered:  # RabbitMQ sets this flag: a door held the message before, for an unknown time
            max_wait_s = self.nonce_s
        timestamp = received.header(TIMESTAMP) or ""
        return check_freshness(timestamp, now, tolerance_s=self.tolerance_s, max_wait_s=max_wait_s, max_age_s=self.nonce_s)


def inflated(received: Received, max_bytes: int) -> bytes | Refusal:
    """Return the body, inflated if it is gzip; return a refusal if it is larger than `max_bytes` or is not valid gzip.

    At most `max_bytes` + 1 bytes are inflated, so a small gzip body cannot exhaust the memory.
    """
    if len(received.body) > max_bytes:
        return _too_large(max_bytes)
    match (received.content_encoding or "").lower():
        case "" | "identity" | "utf-8" | "utf8":
            return received.body
        case "gzip":
            unzip = zlib.decompressobj(wbits=31)
            try:
                body = unzip.decompress(received.body, max_bytes + 1)
            except zlib.error:
                return Refusal(Code.MALFORMED_JSON, "the body is not gzip", "content_encoding: gzip, or none")
            if len(body) > max_bytes:
                return _too_large(max_bytes)
            if not unzip.eof or unzip.unused_data:
                return Refusal(
                    Code.MALFORMED_JSON,
                    "the gzip body is incomplete or has trailing data",
                    "body: one member of gzip, and nothing after it",
                )
            return body
        case _:
            return Refusal(Code.SCHEMA_ERROR, "the content encoding is not known", "content_encoding: gzip, or none")


def _too_large(max_bytes: int) -> Refusal:
    return Refusal(Code.SIZE_ERROR, "the message is too large", f"body: at most {max_bytes} bytes, inflated or not")


def check_headers(received: Received, parsed: RawSignal | DeviceStatus) -> Refusal | None:
    """Return a refusal if a header is invalid or contradicts the body, else None.

    A missing header is accepted here. The signature check requires some headers itself.
    """
    content_type = received.content_type or received.header("content-type") or JSON_TYPES[0]
    media_type = content_type.partition(";")[0].strip().lower()  # without its parameters
    if media_type not in JSON_TYPES:
        return Refusal(Code.SCHEMA_ERROR, "the content type is not JSON", f"content-type: {JSON_TYPES[0]}")
    device_id = received.header(DEVICE)
    if device_id is not None and device_id != parsed.device_id:
        return Refusal(Code.SCHEMA_ERROR, "header and body name different devices", f"{DEVICE}: the body's deviceId")
    version = received.header(VERSION)
    if isinstance(parsed, RawSignal) and version is not None and version != parsed.schema_version:
        return Refusal(Code.SCHEMA_ERROR, "header and body name different versions", f"{VERSION}: the body's schemaVersion")
    correlation_id = received.header(CORRELATION)
    if correlation_id is not None and not UUID_4.fullmatch(correlation_id):
        return Refusal(Code.SCHEMA_ERROR, "the correlation id is not a UUID", f"{CORRELATION}: a UUID of version 4")
    key = received.header(IDEMPOTENCY)
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        return Refusal(Code.SCHEMA_ERROR, "the idempotency key is invalid", f"{IDEMPOTENCY}: 1 to 200 printable characters")
    return None


def _accepted(received: Received, parsed: RawSignal | DeviceStatus, body: bytes, *, signed: bool) -> Accepted:
    """Build the accepted message. A sender may choose the idempotency key of a signal, but not that of a device status."""
    if isinstance(parsed, RawSignal):
        payload, signal_digest = parsed.payload_bytes, idempotency_key(parsed)
        key = received.header(IDEMPOTENCY) or signal_digest
    else:
        payload, signal_digest = body, hashlib.sha256(body).hexdigest()
        key = signal_digest
    return Accepted(
        received=received,
        parsed=parsed,
        payload=payload,
        signal_digest=signal_digest,
        key=key,
        body_digest=hashlib.sha256(received.body).hexdigest(),
        nonce=received.header(NONCE) if signed else None,
        correlation_id=parsed.correlation_id or received.correlation_id,
    )
