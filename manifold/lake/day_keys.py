"""Day keys: the keys under which signals are sealed, at least one for each day on which signals were accepted.

A day key is wrapped by the key ring and stored beside the archive, as `<archive>/keys/<day>/<key id>.json`. Rotation rewraps
every day key under the current key of the ring; sealed signals stay unchanged. Deleting the file of a day key makes every signal
sealed under that key unreadable, in journal, archive and tables.
"""

import base64
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyarrow import fs

from manifold.contracts.seq import datetime_of
from manifold.contracts.storage import AWS, S3
from manifold.lake.key_ring import KeyIsGone, KeyRing, key_ring
from manifold.lake.sealing import parts_of, seal, unseal
from manifold.lake.storage import open_storage, write_bytes
from manifold.settings import Settings

FOLDER = "keys"
_KEY_ID = re.compile(r"(\d{4}-\d{2}-\d{2})\.[0-9a-f]{12}")


class WrappedKey(msgspec.Struct, frozen=True):
    """A day's key, as stored in its file."""

    key_id: str
    ring_id: str  # id of the ring's key that wrapped it
    wrapped: str  # base64
    wrapped_at: str

    @property
    def day(self) -> date:
        """The day whose signals it seals."""
        return date.fromisoformat(self.key_id.partition(".")[0])


class DayKeys:
    """Seals and opens messages. Thread-safe. Can be pickled for workers, which then load the keys that they need."""

    def __init__(self, url: str, ring: KeyRing, s3: S3 = AWS) -> None:
        self._ring = ring
        self._url, self._s3 = url, s3
        self._fs, self._root = open_storage(url, s3)
        self._keys: dict[str, AESGCM] = {}
        self._why_gone: dict[str, str] = {}  # by key id; kept, so that storage is not read again for each message
        self._key_id_by_day: dict[date, str] = {}  # the key under which this process seals the messages of a day
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["DayKeys"], tuple[str, KeyRing, S3]]:
        """Pickle the arguments of the constructor, without cached keys and the lock."""
        return type(self), (self._url, self._ring, self._s3)

    @classmethod
    def of(cls, settings: Settings) -> "DayKeys":
        """The day keys beside the archive of the settings.

        Raises:
            SettingsError: the key ring cannot be read.
        """
        return cls(settings.archive, key_ring(settings), settings.s3)

    @property
    def ring(self) -> KeyRing:
        """The key ring that wraps the day keys."""
        return self._ring

    def seal(self, plain: bytes, *, seq: int) -> bytes:
        """Encrypt the bytes of the message `seq` under a key of the day on which the message was accepted.

        The first message of a day loads the key of that day, or creates one.

        Raises:
            SettingsError: there is no key ring.
            OSError: the day's key cannot be read or written.
        """
        day = datetime_of(seq).date()
        key_id = self._key_id_by_day.get(day) or self._load_or_create_key(day)
        return seal(plain, key_id, self._keys[key_id], _associated_data(seq))

    def open(self, sealed: bytes, *, seq: int) -> bytes:
        """Decrypt the sealed bytes of the message `seq`.

        Raises:
            KeyIsGone: the day key of the bytes is gone, or this ring cannot unwrap it.
            Broken: the bytes are damaged, or belong to another message.
            OSError: the key storage failed.
        """
        parts = parts_of(sealed)
        key = self._keys.get(parts.key_id)
        if key is None:
            with self._lock:
                # Look again, because another thread may have loaded the key while this one waited for the lock.
                key = self._keys.get(parts.key_id) or self._load_unless_gone(parts.key_id)
        return unseal(parts, key, _associated_data(seq))

    def wrapped(self) -> Iterator[WrappedKey]:
        """Yield the wrapped keys of all days, oldest day first. Damaged files are left out.

        Raises:
            OSError: the key storage failed.
        """
        for key_id in self._stored_ids():
            wrapped_key = self._read(key_id)
            if wrapped_key is not None:
                yield wrapped_key

    def rotate(self) -> tuple[int, list[str]]:
        """Rewrap every day key under the ring's current key.

        Returns the number of rewrapped keys, and the ids of the keys that the ring cannot unwrap, or whose files are damaged.
        Idempotent, and safe to interrupt: each file is replaced atomically.

        Raises:
            SettingsError: there is no key ring.
            OSError: the key storage failed.
        """
        rewrapped = 0
        unreadable = []
        for key_id in self._stored_ids():
            old = self._read(key_id)
            if old is None:
                unreadable.append(key_id)
                continue
            if old.ring_id == self._ring.current:
                continue
            try:
                key = self._ring.unwrap(old.ring_id, base64.b64decode(old.wrapped, validate=True), key_id.encode())
            except (KeyIsGone, ValueError):  # ValueError: damaged base64
                unreadable.append(key_id)
                continue
            self._write(key_id, key)
            rewrapped += 1
        return rewrapped, unreadable

    def _stored_ids(self) -> list[str]:
        """List the ids of all keys that have a file, oldest day first."""
        infos = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{FOLDER}", recursive=True, allow_not_found=True))
        names = sorted(info.base_name for info in infos if info.type == fs.FileType.File and info.base_name.endswith(".json"))
        return [key_id for name in names if _KEY_ID.fullmatch(key_id := name.removesuffix(".json"))]

    def _load_or_create_key(self, day: date) -> str:
        """Load a usable key of the day, or create one; return its id."""
        with self._lock:
            if day not in self._key_id_by_day:
                self._key_id_by_day[day] = self._load_usable_key(day) or self._create_key(day)
            return self._key_id_by_day[day]

    def _load_usable_key(self, day: date) -> str | None:
        """Load the day's first key that the ring can unwrap, in order of ids; return its id, or None if there is no such key."""
        infos = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{FOLDER}/{day}", allow_not_found=True))
        for name in sorted(info.base_name for info in infos):
            key_id: str = name.removesuffix(".json")
            if not _KEY_ID.fullmatch(key_id):
                continue
            try:
                self._load(key_id)
            except KeyIsGone:  # the next key may be usable
                continue
            return key_id
        return None

    def _create_key(self, day: date) -> str:
        """Create a key of the day and store it; return its id."""
        key_id = f"{day}.{os.urandom(6).hex()}"
        key = os.urandom(32)
        self._write(key_id, key)  # stored before any message is sealed under it
        self._keys[key_id] = AESGCM(key)
        return key_id

    def _load_unless_gone(self, key_id: str) -> AESGCM:
        """Load a key. If it is known to be gone, raise KeyIsGone without reading storage."""
        if key_id in self._why_gone:
            raise KeyIsGone(self._why_gone[key_id])
        try:
            return self._load(key_id)
        except KeyIsGone as exc:
            if _KEY_ID.fullmatch(key_id):  # `_read` refuses any other id without reading storage, so none need be kept
                self._why_gone[key_id] = str(exc)
            raise

    def _load(self, key_id: str) -> AESGCM:
        """Read a key from storage, unwrap it, and cache it.

        Raises:
            KeyIsGone: the key's file is missing or damaged, or the ring cannot unwrap the key.
        """
        stored = self._read(key_id)
        if stored is None:
            raise KeyIsGone(f"the key {key_id} is gone")
        try:
            wrapped = base64.b64decode(stored.wrapped, validate=True)
        except ValueError as exc:
            raise KeyIsGone(f"the file of the key {key_id} is damaged") from exc
        key = AESGCM(self._ring.unwrap(stored.ring_id, wrapped, key_id.encode()))
        self._keys[key_id] = key
        return key

    def _read(self, key_id: str) -> WrappedKey | None:
        """Read the file of a key; None if the id is not that of a day key, or if the file is missing, damaged or misnamed."""
        if not _KEY_ID.fullmatch(key_id):
            return None
        try:
            with self._fs.open_input_file(f"{self._root}/{_path(key_id)}") as file:
                stored = msgspec.json.decode(file.read(), type=WrappedKey)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return stored if stored.key_id == key_id else None

    def _write(self, key_id: str, key: bytes) -> None:
        """Wrap a key under the ring's current key, and write its file."""
        ring_id, wrapped = self._ring.wrap(key, key_id.encode())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        content = msgspec.json.encode(WrappedKey(key_id, ring_id, base64.b64encode(wrapped).decode(), now))
        write_bytes(self._fs, self._root, _path(key_id), content)


def _associated_data(seq: int) -> bytes:
    """What is authenticated with a message's sealed bytes, so that they cannot stand in for those of another message."""
    return f"seq {seq}".encode()


def _path(key_id: str) -> str:
    return f"{FOLDER}/{key_id.partition('.')[0]}/{key_id}.json"
