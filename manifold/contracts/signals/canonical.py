"""Digests of a signal: messages with the same digest are the same signal."""

import hashlib

import msgspec

from manifold.contracts.signals.messages import RawSignal

canonical_json = msgspec.json.Encoder(order="sorted").encode  # no spaces, UTF-8: deterministic bytes


def idempotency_key(signal: RawSignal) -> str:
    """Return the SHA-256 of the canonical JSON of deviceId, capturedAt and payload as sent; lower-case hex."""
    content = {"deviceId": signal.device_id, "capturedAt": signal.captured_at, "payload": signal.payload}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def content_digest(payload: bytes) -> str:
    """Return the SHA-256 of the decoded payload, lower-case hex; with device and instant, the key of the lake's row."""
    return hashlib.sha256(payload).hexdigest()
