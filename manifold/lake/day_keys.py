"""Day keys: the signals of a day are sealed under a key of that day, stored beside the archive and wrapped by the key ring.

`<archive>/keys/<day>/<key id>.json` has one wrapped key. Rotation rewraps each under the current key of the ring; signals
stay as they are. Deleting such a file makes everything sealed under that key unreadable, in journal, archive and tables at once.
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
    """Seals and opens messages. Thread-safe; can be sent to workers, which read the keys that they need."""

    def __init__(self, url: str, ring: KeyRing, s3: S3 = AWS) -> None:
        self._ring, self._fs, self._root = ring, *open_storage(url, s3)
        self._url, self._s3 = url, s3
        self._keys: dict[str, AESGCM] = {}
        self._gone: dict[str, str] = {}  # key id → why it is unavailable, so that storage is not read again for each message
        self._of_day: dict[date, str] = {}  # day → id of the key under which its messages are sealed
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["DayKeys"], tuple[str, KeyRing, S3]]:
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
        """Seal the bytes of the message `seq` under a key of the day in it. The first message of a day creates or finds the key.

        Raises:
            SettingsError: there is no key ring.
            OSError: the day's key cannot be read or written.
        """
        day = datetime_of(seq).date()
        key_id = self._of_day.get(day) or self._key_of(day)
        return seal(plain, key_id, self._keys[key_id], about(seq))

    def open(self, sealed: bytes, *, seq: int) -> bytes:
        """Open the sealed bytes of the message `seq`.

        Raises:
            KeyIsGone: the key of the bytes is gone, or this ring cannot unwrap it.
            Broken: the bytes are damaged, or belong to another message.
            OSError: the key storage failed.
        """
        parts = parts_of(sealed)
        key = self._keys.get(parts.key_id)
        if key is None:
            with self._lock:
                key = self._keys.get(parts.key_id) or self._load_unless_gone(parts.key_id)
        return unseal(parts, key, about(seq))

    def wrapped(self) -> Iterator[WrappedKey]:
        """Yield every day's wrapped keys, oldest first.

        Raises:
            OSError: the key storage failed.
        """
        infos = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{FOLDER}", recursive=True, allow_not_found=True))
        for path in sorted(info.path for info in infos if info.type == fs.FileType.File and info.path.endswith(".json")):
            key_id = path.rpartition("/")[2].removesuffix(".json")
            if _KEY_ID.fullmatch(key_id) and (found := self._read(key_id)) is not None:
                yield found

    def rotate(self) -> tuple[int, list[str]]:
        """Rewrap each day's key under the ring's current key; return how many, and the ids of those that the ring cannot unwrap.

        Idempotent. It may be interrupted anywhere: each file is whole before and after.

        Raises:
            SettingsError: there is no key ring.
            OSError: the key storage failed.
        """
        done, gone = 0, []
        for old in self.wrapped():
            if old.ring_id == self._ring.current:
                continue
            try:
                key = self._ring.unwrap(old.ring_id, base64.b64decode(old.wrapped), old.key_id.encode())
            except (KeyIsGone, ValueError):
                gone.append(old.key_id)
                continue
            self._write(old.key_id, key)
            done += 1
        return done, gone

    def _key_of(self, day: date) -> str:
        """The id of a key of the day: an existing one that can be unwrapped, else a new one."""
        with self._lock:
            if day not in self._of_day:
                self._of_day[day] = self._usable_key_of(day) or self._create_key(day)
            return self._of_day[day]

    def _usable_key_of(self, day: date) -> str | None:
        """The id of the day's first key that can be unwrapped."""
        infos = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{FOLDER}/{day}", allow_not_found=True))
        names: list[str] = sorted(info.base_name for info in infos)
        for key_id in (name.removesuffix(".json") for name in names):
            if _KEY_ID.fullmatch(key_id):
                try:
                    self._load(key_id)
                except KeyIsGone:
                    continue
                return key_id
        return None

    def _create_key(self, day: date) -> str:
        key_id, key = f"{day}.{os.urandom(6).hex()}", os.urandom(32)
        self._write(key_id, key)  # stored before anything is sealed under it
        self._keys[key_id] = AESGCM(key)
        return key_id

    def _load_unless_gone(self, key_id: str) -> AESGCM:
        if key_id in self._gone:
            raise KeyIsGone(self._gone[key_id])
        try:
            return self._load(key_id)
        except KeyIsGone as exc:
            if _KEY_ID.fullmatch(key_id):
                self._gone[key_id] = str(exc)
            raise

    def _load(self, key_id: str) -> AESGCM:
        found = self._read(key_id)
        if found is None:
            raise KeyIsGone(f"the key {key_id} is gone")
        try:
            wrapped = base64.b64decode(found.wrapped, validate=True)
        except ValueError as exc:
            raise KeyIsGone(f"the file of the key {key_id} is damaged") from exc
        self._keys[key_id] = AESGCM(self._ring.unwrap(found.ring_id, wrapped, key_id.encode()))
        return self._keys[key_id]

    def _read(self, key_id: str) -> WrappedKey | None:
        if not _KEY_ID.fullmatch(key_id):
            return None
        try:
            with self._fs.open_input_file(f"{self._root}/{_path(key_id)}") as file:
                found = msgspec.json.decode(file.read(), type=WrappedKey)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return found if found.key_id == key_id else None

    def _write(self, key_id: str, key: bytes) -> None:
        ring_id, wrapped = self._ring.wrap(key, key_id.encode())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        content = msgspec.json.encode(WrappedKey(key_id, ring_id, base64.b64encode(wrapped).decode(), now))
        write_bytes(self._fs, self._root, _path(key_id), content)


def about(seq: int) -> bytes:
    """The additional data authenticated with the bytes of a message, so that they cannot be passed off as another's."""
    return f"seq {seq}".encode()


def _path(key_id: str) -> str:
    return f"{FOLDER}/{key_id.partition('.')[0]}/{key_id}.json"
