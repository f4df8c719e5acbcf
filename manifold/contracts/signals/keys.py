"""Redis keys of the AMQP door. They are short, because there are millions of keys. The keys of one device share a cluster slot.

Keys contain a digest of the device id. Nonces are stored in hashes, one hash for each device and *generation*; a generation is an
interval of 1 / `GENERATIONS` of the time for which nonces are kept. A hash expires as a whole, and the fields of a small hash
have almost no overhead.
"""

import hashlib
from functools import lru_cache

GENERATIONS = 4  # in the retention of nonces; a nonce is kept for up to one generation longer
_TAG_BYTES, _DIGEST_BYTES = 9, 16


def nonces(device_id: str, generation: int) -> bytes:
    """Return the key of the hash of the device's nonces first seen in this generation."""
    return b"x:{%b}:n:%d" % (_tag(device_id), generation)


def idempotency(device_id: str, idempotency_key: str) -> bytes:
    """Return the Redis key for an idempotency key of a device. Its value is that of `claimed` or `done`."""
    return b"x:{%b}:k:%b" % (_tag(device_id), digest(idempotency_key))


def claimed(content: str, holder: str) -> bytes:
    """Return the value of an idempotency key that a message has claimed and whose signal is not processed yet.

    `content` is a digest of the signal, by which another signal with the same key is noticed. `holder` identifies the message,
    and is the same in every redelivery.
    """
    return b"h" + digest(content) + digest(holder)


def done(content: str, holder: str) -> bytes:
    """Return the value of an idempotency key whose signal was processed. The arguments are those of `claimed`."""
    return b"d" + digest(content) + digest(holder)


def digest(text: str) -> bytes:
    """Return the first half of a SHA-256: 128 bits, enough against collisions."""
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]


@lru_cache(maxsize=1 << 16)
def _tag(device_id: str) -> bytes:
    """Return the hash tag of a device's keys. It is hexadecimal, because a brace among raw bytes would end the tag."""
    return hashlib.sha256(device_id.encode()).hexdigest()[: 2 * _TAG_BYTES].encode()
