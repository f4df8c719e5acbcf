"""The signature of a message: HMAC-SHA256 over algorithm, device, nonce, digest of the body and time."""

import hmac

ALGORITHM = "sha256"  # as x-algorithm names it


def body_digest(body: bytes, secret: str) -> str:
    """The hex HMAC of a body as delivered."""
    return hmac.digest(secret.encode(), body, ALGORITHM).hex()


def signed_text(*, algorithm: str, device_id: str, nonce: str, digest: str, timestamp: str) -> str:
    """The text that is signed; its fields are in the order of their names."""
    return f"algorithm={algorithm}&deviceId={device_id}&nonce={nonce}&payload={digest}&timestamp={timestamp}"


def signature(body: bytes, secret: str, *, device_id: str, nonce: str, timestamp: str, algorithm: str = ALGORITHM) -> str:
    """The signature that a sender with this secret gives."""
    digest = body_digest(body, secret)
    text = signed_text(algorithm=algorithm, device_id=device_id, nonce=nonce, digest=digest, timestamp=timestamp)
    return hmac.digest(secret.encode(), text.encode(), ALGORITHM).hex()


def signed_headers(body: bytes, secret: str, *, device_id: str, nonce: str, timestamp: str) -> dict[str, str]:
    """The headers that prove the sender of `body`; `nonce`: 32 lower-case hex digits, unique to this message."""
    return {
        "x-hmac-signature": signature(body, secret, device_id=device_id, nonce=nonce, timestamp=timestamp),
        "x-timestamp-auth": timestamp,
        "x-nonce": nonce,
        "x-algorithm": ALGORITHM,
    }
