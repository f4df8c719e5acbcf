"""Seals bytes with AES-256-GCM under a day key, whose id they contain. Their context is authenticated with them."""

import os
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from manifold.contracts.errors import Permanent

MAGIC = b"\xf5MX1"  # no UTF-8 text begins with 0xF5
NONCE = 12  # bytes
TAG = 16  # bytes


class Broken(Permanent):
    """The bytes are damaged, of another message, or were never sealed."""


class Sealed(NamedTuple):
    """The parts of sealed bytes."""

    key_id: str
    header: bytes  # everything before the nonce; it is authenticated
    nonce: bytes
    ciphertext: bytes  # with its tag


def seal(plain: bytes, key_id: str, key: AESGCM, about: bytes) -> bytes:
    """Seal the bytes: magic, length of the key's id, the id, nonce, ciphertext and tag."""
    name = key_id.encode()
    nonce = os.urandom(NONCE)
    header = MAGIC + bytes((len(name),)) + name
    return header + nonce + key.encrypt(nonce, plain, header + about)


def parts_of(sealed: bytes) -> Sealed:
    """Split sealed bytes into their parts.

    Raises:
        Broken: they were not sealed.
    """
    key_id, end = _named(sealed)
    return Sealed(key_id, sealed[:end], sealed[end : end + NONCE], sealed[end + NONCE :])


def key_id_of(sealed: bytes) -> str:
    """The id of the key that opens the bytes.

    Raises:
        Broken: they were not sealed.
    """
    return _named(sealed)[0]


def unseal(parts: Sealed, key: AESGCM, about: bytes) -> bytes:
    """Open the bytes.

    Raises:
        Broken: they are damaged, or of another context.
    """
    try:
        return key.decrypt(parts.nonce, parts.ciphertext, parts.header + about)
    except InvalidTag as exc:
        raise Broken(f"sealed bytes under key {parts.key_id} are damaged, or of another message") from exc


def _named(sealed: bytes) -> tuple[str, int]:
    """The key's id, and the offset at which it ends."""
    if len(sealed) <= len(MAGIC) or not sealed.startswith(MAGIC):
        raise Broken("these bytes are not sealed: the magic number is missing")
    end = len(MAGIC) + 1 + sealed[len(MAGIC)]
    if len(sealed) < end + NONCE + TAG:
        raise Broken("sealed bytes are cut off")
    try:
        return sealed[len(MAGIC) + 1 : end].decode("ascii"), end
    except UnicodeDecodeError as exc:
        raise Broken("sealed bytes name no key") from exc
