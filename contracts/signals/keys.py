"""The Redis keys of the AMQP door. Those of one device are in one slot of a cluster."""

NONCE, KEY = "nonce", "once"


def nonce(device_id: str, value: str) -> str:
    """The digest of the body, and of its idempotency key, that came with this nonce."""
    return f"x:{{{device_id}}}:{NONCE}:{value}"


def once(device_id: str, key: str) -> str:
    """Whether the signal of this idempotency key is held or done, its content's digest, and who holds it."""
    return f"x:{{{device_id}}}:{KEY}:{key}"
