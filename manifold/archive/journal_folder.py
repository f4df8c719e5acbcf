"""The folder of a recorder's journal: a lock held by one process, and a name that no copy of the folder shares."""

import fcntl
import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import psutil

from manifold.contracts.errors import Permanent
from manifold.lake.storage import sync_folder

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux only
_NAME_LENGTH = 16


class UnusableFolder(Permanent):
    """The folder cannot be written: waiting does not help."""


class JournalFolder:
    """A journal folder on this machine since its boot. While it is held, no other process writes that journal.

    `name` is the same only for successive processes that hold the same lock on the same kernel; `journal` stays the same after a
    reboot, or if the folder is moved or copied.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = self.journal = ""
        self.epoch = 0  # of the last claim made here; 0: none, or it was released
        self.after_ms = 0  # the seqs of that claim begin after this millisecond
        self._fd = -1

    def lock(self) -> None:
        """Hold the folder until `unlock`, or until the process ends in any way.

        Raises:
            UnusableFolder: this process may not write there.
            Permanent: another process holds it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o640)
        except OSError as exc:
            raise UnusableFolder(
                f"{self.folder} cannot be written ({exc.strerror}); let the user of this process write there"
            ) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            raise Permanent(f"another recorder works on the journal in {self.folder}; give each a node of its own") from exc
        self._fd = fd
        left = _read(fd)
        self.journal = left.get("journal") or uuid.uuid4().hex
        found = os.fstat(fd)
        there = f"{_boot()}:{found.st_dev}:{found.st_ino}:{self.journal}"
        self.name = hashlib.sha256(there.encode()).hexdigest()[:_NAME_LENGTH]
        if left.get("place") == self.name:
            self.epoch, self.after_ms = int(left["epoch"]), int(left["after_ms"])
        if not left:
            self._write({"journal": self.journal})

    @property
    def last_held_ms(self) -> int:
        """When this folder was last known to hold the number, in Unix ms; 0: never."""
        return os.fstat(self._fd).st_mtime_ns // 1_000_000 if self.epoch else 0

    def mark_held(self, now_ms: int, epoch: int, after_ms: int) -> None:
        """Save that this folder holds the number now."""
        if epoch != self.epoch:
            self._write({"journal": self.journal, "place": self.name, "epoch": epoch, "after_ms": after_ms})
            self.epoch, self.after_ms = epoch, after_ms
        os.utime(self._fd, ns=(now_ms * 1_000_000, now_ms * 1_000_000))

    def forget(self) -> None:
        """Save that this folder does not hold the number any more."""
        self._write({"journal": self.journal})
        self.epoch = self.after_ms = 0

    def unlock(self) -> None:
        """Release the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, content: dict[str, Any]) -> None:
        wire = json.dumps(content).encode()
        os.pwrite(self._fd, wire, 0)
        os.ftruncate(self._fd, len(wire))
        os.fsync(self._fd)
        sync_folder(self.folder)


def _boot() -> str:
    """An id that stays the same until the machine is rebooted.

    On systems other than Linux, setting the clock changes it too: the recorder then takes its own last claim for another
    recorder's and waits until it has expired.
    """
    try:
        return _BOOT.read_text().strip()
    except FileNotFoundError:
        return str(int(psutil.boot_time()))


def _read(fd: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(fd, 1 << 12, 0))
    except ValueError:  # new, or torn while it was new
        return {}
    return found if isinstance(found, dict) else {}
