"""Digests of a signal: what makes two messages the same one."""

import hashlib
import json
from typing import Any

from contracts.signals.messages import RawSignal


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, without spaces, in UTF-8: the same bytes for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def idempotency_key(signal: RawSignal) -> str:
    """SHA-256 of the canonical JSON of deviceId, capturedAt and payload, as they were sent; lower-case hex."""
    content = {"deviceId": signal.device_id, "capturedAt": signal.captured_at, "payload": signal.payload}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def content_digest(payload: bytes) -> str:
    """SHA-256 of the decoded payload, lower-case hex; with device and instant it is the key of the lake's row."""
    return hashlib.sha256(payload).hexdigest()
