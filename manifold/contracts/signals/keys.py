"""The Redis keys of the AMQP door: short, because there are millions of them. Those of one device are in one slot of a cluster.

A key has a digest in place of the name of its device. Nonces are in hashes, one for each device and *generation*, which is a part
of the time for which they are remembered. A hash expires as a whole. Fields of a small hash have no overhead.
"""

import hashlib
from functools import lru_cache

GENERATIONS = 4  # that one memory of nonces is divided into; a nonce is remembered for up to one more
_TAG_BYTES, _DIGEST_BYTES = 9, 16


def nonces(device_id: str, generation: int) -> bytes:
    """The hash of the device's nonces that were first seen in this generation."""
    return b"x:{%b}:n:%d" % (_tag(device_id), generation)


def once(device_id: str, key: str) -> bytes:
    """Whether the signal of this idempotency key is held or done, its content's digest, and who holds it."""
    return b"x:{%b}:k:%b" % (_tag(device_id), digest(key))


def held(content: str, holder: str) -> bytes:
    """The value of an idempotency key that a message holds."""
    return b"h" + digest(content) + digest(holder)


def done(content: str, holder: str) -> bytes:
    """The value of an idempotency key whose signal was processed."""
    return b"d" + digest(content) + digest(holder)


def digest(text: str) -> bytes:
    """Half a SHA-256 of the text: nobody finds another text for the same one."""
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]


@lru_cache(maxsize=1 << 16)
def _tag(device_id: str) -> bytes:
    """Hexadecimal, for a cluster looks for braces."""
    return hashlib.sha256(device_id.encode()).hexdigest()[: 2 * _TAG_BYTES].encode()
