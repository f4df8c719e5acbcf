"""Message signature: HMAC-SHA256 over algorithm, device, nonce, digest of the body, and time."""

import hmac

ALGORITHM = "sha256"  # value of x-algorithm


def body_digest(body: bytes, secret: str) -> str:
    """Return the hex HMAC of a body as sent."""
    return hmac.digest(secret.encode(), body, ALGORITHM).hex()


def signed_text(*, algorithm: str, device_id: str, nonce: str, digest: str, timestamp: str) -> str:
    """Return the text to sign; its fields are sorted by name."""
    return f"algorithm={algorithm}&deviceId={device_id}&nonce={nonce}&payload={digest}&timestamp={timestamp}"


def signature(body: bytes, secret: str, *, device_id: str, nonce: str, timestamp: str, algorithm: str = ALGORITHM) -> str:
    """Return the signature of a message, in hex."""
    digest = body_digest(body, secret)
    text = signed_text(algorithm=algorithm, device_id=device_id, nonce=nonce, digest=digest, timestamp=timestamp)
    return hmac.digest(secret.encode(), text.encode(), ALGORITHM).hex()


def signed_headers(body: bytes, secret: str, *, device_id: str, nonce: str, timestamp: str) -> dict[str, str]:
    """Return the signature headers for `body`; `nonce`: 32 lower-case hex digits, unique to this message."""
    return {
        "x-hmac-signature": signature(body, secret, device_id=device_id, nonce=nonce, timestamp=timestamp),
        "x-timestamp-auth": timestamp,
        "x-nonce": nonce,
        "x-algorithm": ALGORITHM,
    }
