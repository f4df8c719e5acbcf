"""Seals bytes with AES-256-GCM under a day key. Sealed bytes contain the id of the key, and can be opened only in their context.

The context is the associated data of the encryption: `unseal` needs the same bytes as `seal`.
"""

import os
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from manifold.contracts.errors import Permanent

MAGIC = b"\xf5MX1"  # no UTF-8 text begins with 0xF5
NONCE_BYTES = 12
TAG_BYTES = 16


class Broken(Permanent):
    """The bytes are damaged, belong to another message, or were never sealed."""


class Sealed(NamedTuple):
    """The parts of sealed bytes."""

    key_id: str
    header: bytes  # everything before the nonce; authenticated, not encrypted
    nonce: bytes
    ciphertext: bytes  # includes the authentication tag


def seal(plain: bytes, key_id: str, key: AESGCM, associated_data: bytes) -> bytes:
    """Encrypt the bytes under the day key `key`.

    The result is a header, nonce, ciphertext and tag; the header is the magic number, the length of the key's id, and the id.
    """
    encoded_id = key_id.encode()
    nonce = os.urandom(NONCE_BYTES)
    header = MAGIC + bytes((len(encoded_id),)) + encoded_id
    return header + nonce + key.encrypt(nonce, plain, header + associated_data)


def parts_of(sealed: bytes) -> Sealed:
    """Split sealed bytes into their parts.

    Raises:
        Broken: the bytes were not sealed, or are cut off.
    """
    key_id, header_end = _parse_header(sealed)
    nonce_end = header_end + NONCE_BYTES
    return Sealed(key_id, sealed[:header_end], sealed[header_end:nonce_end], sealed[nonce_end:])


def key_id_of(sealed: bytes) -> str:
    """The id of the key that opens the bytes.

    Raises:
        Broken: the bytes were not sealed, or are cut off.
    """
    key_id, _ = _parse_header(sealed)
    return key_id


def unseal(parts: Sealed, key: AESGCM, associated_data: bytes) -> bytes:
    """Decrypt sealed bytes that were split by `parts_of`.

    Raises:
        Broken: the bytes are damaged, or were sealed with other associated data.
    """
    try:
        return key.decrypt(parts.nonce, parts.ciphertext, parts.header + associated_data)
    except InvalidTag as exc:
        raise Broken(f"sealed bytes under key {parts.key_id} are damaged, or of another message") from exc


def _parse_header(sealed: bytes) -> tuple[str, int]:
    """The key's id, and the offset at which the header ends."""
    length_offset = len(MAGIC)  # one byte, with the length of the id
    if len(sealed) <= length_offset or not sealed.startswith(MAGIC):
        raise Broken("these bytes are not sealed: the magic number is missing")
    id_start = length_offset + 1
    id_end = id_start + sealed[length_offset]
    if len(sealed) < id_end + NONCE_BYTES + TAG_BYTES:
        raise Broken("sealed bytes are cut off")
    try:
        return sealed[id_start:id_end].decode("ascii"), id_end
    except UnicodeDecodeError as exc:
        raise Broken("sealed bytes name no key") from exc
