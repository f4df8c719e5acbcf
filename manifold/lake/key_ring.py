"""The key ring: the keys that wrap day keys. The first key of the ring wraps new day keys; all keys can unwrap."""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from manifold.contracts.errors import SettingsError
from manifold.runtime import secret_files
from manifold.settings import Settings

KEY_BYTES = 32
NONCE_BYTES = 12
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_REMEDY = "write <id>:<base64 of 32 random bytes>; `manifold signals keys new` prints one"


class KeyIsGone(Exception):
    """A day key cannot be had: its file is gone or damaged, or the ring lacks the key that wrapped it."""


class KeyRing:
    """Keys by id, in order; the first is the current key. The text of a ring (`repr`) has only ids."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys, that of the current key first."""
        return tuple(self._keys)

    @property
    def current(self) -> str:
        """The id of the key that wraps new keys.

        Raises:
            SettingsError: the ring is empty.
        """
        if not self._keys:
            raise SettingsError(f"no key ring for signals: set MANIFOLD_SIGNALS_KEYS_FILE or MANIFOLD_SIGNALS_KEYS; {_REMEDY}")
        return next(iter(self._keys))

    def wrap(self, key: bytes, associated_data: bytes) -> tuple[str, bytes]:
        """Wrap `key` under the ring's current key; return the id of the current key, and the wrapped bytes.

        `associated_data` is authenticated with the key: `unwrap` needs the same bytes.
        """
        nonce = os.urandom(NONCE_BYTES)
        return self.current, nonce + AESGCM(self._keys[self.current]).encrypt(nonce, key, associated_data)

    def unwrap(self, ring_id: str, wrapped: bytes, associated_data: bytes) -> bytes:
        """Unwrap a key that the ring's key `ring_id` has wrapped with the same `associated_data`.

        Raises:
            KeyIsGone: the ring has no key of this id, or its key of this id did not wrap these bytes.
        """
        if ring_id not in self._keys:
            raise KeyIsGone(f"the key ring has no key {ring_id}")
        try:
            nonce, ciphertext = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
            return AESGCM(self._keys[ring_id]).decrypt(nonce, ciphertext, associated_data)
        except (InvalidTag, ValueError) as exc:
            raise KeyIsGone(f"the key ring has another key under the id {ring_id}") from exc


def key_ring(settings: Settings) -> KeyRing:
    """The key ring of `signals_keys`, or else of `signals_keys_file`, or else the one that the sandbox created in the home.

    The ring is empty if there is none.

    Raises:
        SettingsError: a key is invalid, or the file cannot be read. The message never contains a key.
    """
    text = settings.signals_keys.get_secret_value()
    if text:
        return KeyRing(read_keys(text, source="MANIFOLD_SIGNALS_KEYS"))
    if settings.signals_keys_file:
        source = f"the file {settings.signals_keys_file}"
        try:
            text = Path(settings.signals_keys_file).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsError(f"MANIFOLD_SIGNALS_KEYS_FILE: {source} cannot be read: {type(exc).__name__}") from exc
        return KeyRing(read_keys(text, source))
    text = secret_files.read(settings.home, secret_files.KEYS)
    return KeyRing(read_keys(text, source=str(secret_files.folder(settings.home))))


def require_ring(settings: Settings) -> str:
    """Require a key ring that has a key; return the id of its current key.

    Raises:
        SettingsError: the ring cannot be read, or is empty.
    """
    return key_ring(settings).current


def read_keys(text: str, source: str) -> dict[str, bytes]:
    """Parse the text of a key ring into keys by id, in order.

    Entries are separated by line ends or commas; lines that begin with # are ignored. `source` names the text's origin in errors.

    Raises:
        SettingsError: an entry is not a key, or two entries have the same id.
    """
    keys: dict[str, bytes] = {}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    parts = [part.strip() for part in ",".join(lines).split(",")]
    entries = [part for part in parts if part]
    for number, entry in enumerate(entries, start=1):
        name, _, encoded = entry.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            key = b""  # refused below
        is_random = len(set(key)) >= KEY_BYTES // 4  # fewer distinct bytes mean a placeholder, such as zeros
        if not _ID.fullmatch(name) or len(key) != KEY_BYTES or not is_random:
            raise SettingsError(f"{source}: entry {number} is not a key; {_REMEDY}")
        if name in keys:
            raise SettingsError(f"{source}: two keys have the id {name}; give each its own")
        keys[name] = key
    return keys


def new_key_line(name: str | None = None) -> str:
    """A new random key, as a line of a ring's file. Its id is `name`, or random if there is none."""
    key_id = name or f"k{os.urandom(4).hex()}"
    encoded_key = base64.b64encode(os.urandom(KEY_BYTES)).decode()
    return f"{key_id}:{encoded_key}"
