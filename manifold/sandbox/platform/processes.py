"""Records of started processes, with pid and start time, so that no other process is ever ended."""

import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

SAME_BIRTH_S = 0.5  # the system reports start times in hundredths of a second
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Record:
    """Identifies a process uniquely: pids are reused, but not with the same start time."""

    pid: int
    born: float  # Unix seconds

    @classmethod
    def of_this_process(cls) -> "Record":
        """Return the record of this process; it stays valid through exec."""
        return cls(os.getpid(), psutil.Process().create_time())

    @classmethod
    def of(cls, pid: int) -> "Record | None":
        """Return the record of the process that has this pid now; None if there is none."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    @classmethod
    def read(cls, file: Path) -> "Record | None":
        """Read the record in `file`; None if there is none, or it is malformed."""
        try:
            fields = json.loads(file.read_text())
            return cls(int(fields["pid"]), float(fields["born"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, file: Path) -> None:
        """Write the record to `file` atomically."""
        draft = file.with_name(f"{file.name}.{self.pid}")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(file)

    def process(self) -> psutil.Process | None:
        """Return the process if it is running; zombies do not count."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.born) < SAME_BIRTH_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def family(record: Record) -> list[psutil.Process]:
    """Return the running members of the recorded process's family: itself, its descendants, and its process group.

    A pid is not reused while it is the id of a non-empty process group. So if the leader is gone, its group can still be
    identified, unless a process that started later leads a group with that number.
    """
    leader = record.process()
    found = {leader.pid: leader} if leader else {}
    if leader is None and psutil.pid_exists(record.pid) and Record.of(record.pid) and not _is_zombie(record.pid):
        return []  # the pid was reused
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == record.pid and process.create_time() >= record.born - SAME_BIRTH_S:
                found[process.pid] = process
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    for process in list(found.values()):
        found |= {child.pid: child for child in _descendants(process)}
    return [process for process in found.values() if runs(process)]


def runs(process: psutil.Process) -> bool:
    """Whether this process is running; zombies do not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_gone(processes: Iterable[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Wait until all have ended; return those still running after `within_s` seconds.

    psutil's own wait counts an unreaped zombie as running.
    """
    deadline = time.monotonic() + within_s
    left = [process for process in processes if runs(process)]
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = [process for process in left if runs(process)]
    return left


def end(processes: Iterable[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Send SIGTERM, after `within_s` seconds SIGKILL; return the processes that survive even that."""
    every = list(processes)
    _send(every, signal.SIGTERM)
    left = wait_gone(every, within_s)
    _send(left, signal.SIGKILL)
    return wait_gone(left, 5)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)  # psutil verifies that the pid was not reused
        except psutil.NoSuchProcess:
            continue
