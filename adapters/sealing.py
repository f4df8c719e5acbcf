"""Sealed bytes: AES-256-GCM under a day's key, whose id they name. What they are about is authenticated with them."""

import os
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from contracts.errors import Permanent

MAGIC = b"\xf5MX1"  # 0xF5 begins no text in UTF-8
NONCE = 12  # bytes
TAG = 16  # bytes


class Broken(Permanent):
    """These bytes were not sealed so: damaged, of another message, or never sealed."""


class Sealed(NamedTuple):
    """The parts of sealed bytes."""

    key_id: str
    nonce: bytes
    ciphertext: bytes  # with its tag


def seal(plain: bytes, key_id: str, key: AESGCM, about: bytes) -> bytes:
    """The sealed bytes: magic, length of the key's id, the id, nonce, ciphertext and tag."""
    name = key_id.encode()
    nonce = os.urandom(NONCE)
    header = MAGIC + bytes((len(name),)) + name
    return header + nonce + key.encrypt(nonce, plain, header + about)


def parts_of(sealed: bytes) -> Sealed:
    """The key's id, and what it opens.

    Raises:
        Broken: they were not sealed.
    """
    if len(sealed) <= len(MAGIC) or not sealed.startswith(MAGIC):
        raise Broken("these bytes are not sealed; they do not begin as such do")
    start = len(MAGIC) + 1 + sealed[len(MAGIC)]
    if len(sealed) < start + NONCE + TAG:
        raise Broken("sealed bytes are cut off")
    try:
        key_id = sealed[len(MAGIC) + 1 : start].decode("ascii")
    except UnicodeDecodeError as exc:
        raise Broken("sealed bytes name no key") from exc
    return Sealed(key_id, sealed[start : start + NONCE], sealed[start + NONCE :])


def unseal(sealed: bytes, key: AESGCM, about: bytes) -> bytes:
    """The plain bytes.

    Raises:
        Broken: they are damaged, or about something else.
    """
    parts = parts_of(sealed)
    header = sealed[: len(MAGIC) + 1 + len(parts.key_id)]
    try:
        return key.decrypt(parts.nonce, parts.ciphertext, header + about)
    except InvalidTag as exc:
        raise Broken(f"sealed bytes under key {parts.key_id} are damaged, or of another message") from exc
