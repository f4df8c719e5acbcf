"""The folder of a recorder's journal: it is locked by a process, and has a name that differs from the name of every copy."""

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
    """This process may not write to the folder. Waiting does not help."""


class JournalFolder:
    """The folder of a journal. While a process has locked it, no other process writes to the journal.

    `name` identifies this folder since the last boot of the machine: two processes have the same name only if they have locked
    the same folder one after the other, without a reboot in between. `journal` identifies the journal: it also stays the same
    after a reboot, and if the folder is moved or copied.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = ""
        self.journal = ""
        self.epoch = 0  # the epoch of the last claim from this folder; 0: there is none, or it was released
        self.after_ms = 0  # `Claim.after_ms` of the last claim from this folder
        self._fd = -1

    def lock(self) -> None:
        """Lock the folder until `unlock` is called or the process ends, and read the state that the last process has left.

        Raises:
            UnusableFolder: this process may not write to the folder.
            Permanent: another process has locked the folder.
        """
        self._fd = self._open_locked()
        state = _read(self._fd)
        self.journal = state.get("journal") or uuid.uuid4().hex
        self.name = self._build_name()
        if state.get("place") == self.name:  # not if it is from before a reboot, or from a folder of which this is a copy
            self.epoch = int(state["epoch"])
            self.after_ms = int(state["after_ms"])
        if not state:
            self._write({"journal": self.journal})

    @property
    def last_held_ms(self) -> int:
        """The last instant, in Unix ms, at which a process in this folder held the number; 0: never, or it was released.

        It is stored as the modification time of the lock file.
        """
        return os.fstat(self._fd).st_mtime_ns // 1_000_000 if self.epoch else 0

    def mark_held(self, now_ms: int, epoch: int, after_ms: int) -> None:
        """Save that the process in this folder holds the number at `now_ms`, by the claim with this epoch and `after_ms`."""
        if epoch != self.epoch:
            self._write({"journal": self.journal, "place": self.name, "epoch": epoch, "after_ms": after_ms})
            self.epoch = epoch
            self.after_ms = after_ms
        os.utime(self._fd, ns=(now_ms * 1_000_000, now_ms * 1_000_000))

    def mark_released(self) -> None:
        """Save that the process in this folder no longer holds the number."""
        self._write({"journal": self.journal})
        self.epoch = 0
        self.after_ms = 0

    def unlock(self) -> None:
        """Unlock the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open_locked(self) -> int:
        """Create the lock file if necessary, open and lock it, and return its file descriptor; raises what `lock` raises."""
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
        return fd

    def _build_name(self) -> str:
        """Build the name from the boot, the lock file's device and inode, and the journal."""
        stat = os.fstat(self._fd)
        identity = f"{_boot_id()}:{stat.st_dev}:{stat.st_ino}:{self.journal}"
        return hashlib.sha256(identity.encode()).hexdigest()[:_NAME_LENGTH]

    def _write(self, state: dict[str, Any]) -> None:
        """Replace the state in the lock file, and sync it."""
        content = json.dumps(state).encode()
        os.pwrite(self._fd, content, 0)
        os.ftruncate(self._fd, len(content))
        os.fsync(self._fd)
        sync_folder(self.folder)


def _boot_id() -> str:
    """An id that stays the same until the machine is rebooted.

    On systems other than Linux, it also changes if the clock is set. The recorder then mistakes its own last claim for the claim
    of another recorder, and waits until that claim has expired.
    """
    try:
        return _BOOT.read_text().strip()
    except FileNotFoundError:
        return str(int(psutil.boot_time()))


def _read(fd: int) -> dict[str, Any]:
    """The state in the lock file; empty if the file is new, or if the process that created it crashed while writing."""
    try:
        state = json.loads(os.pread(fd, 1 << 12, 0))
    except ValueError:
        return {}
    return state if isinstance(state, dict) else {}
