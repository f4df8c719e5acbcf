"""Records of started processes, with pid and start time, so that no process of anybody else is ever ended."""

import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

START_TIME_TOLERANCE_S = 0.5  # start times that differ by less are the same: the system reports them in hundredths of a second
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Record:
    """Identifies a process: a pid may be reused, but not with the same start time."""

    pid: int
    born: float  # start time, Unix seconds

    @classmethod
    def of_this_process(cls) -> "Record":
        """Return the record of this process; it stays valid through exec."""
        return cls(os.getpid(), psutil.Process().create_time())

    @classmethod
    def of(cls, pid: int) -> "Record | None":
        """Return the record of the process that has this pid now; None if there is no such process."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    @classmethod
    def read(cls, file: Path) -> "Record | None":
        """Read the record in `file`; None if there is no file, or it is malformed."""
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
            is_same = abs(process.create_time() - self.born) < START_TIME_TOLERANCE_S
            return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def family(record: Record) -> list[psutil.Process]:
    """Return the running processes of the recorded process's family: itself, its descendants, and its process group.

    The group can be identified even if the recorded process, its leader, has ended: the system does not reuse the id of a group
    that still has members. If another process has the pid, the group is empty, and so is the result.
    """
    leader = record.process()
    is_pid_in_use = psutil.pid_exists(record.pid) and Record.of(record.pid) is not None and not _is_zombie(record.pid)
    if leader is None and is_pid_in_use:
        return []  # another process has the pid
    members = {leader.pid: leader} if leader else {}
    for process in psutil.process_iter():
        try:
            is_in_group = os.getpgid(process.pid) == record.pid
            # No member of the recorded group can be older than its leader.
            if is_in_group and process.create_time() >= record.born - START_TIME_TOLERANCE_S:
                members[process.pid] = process
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue  # it has ended meanwhile, or belongs to another user
    for process in list(members.values()):
        members |= {descendant.pid: descendant for descendant in _descendants(process)}
    return [process for process in members.values() if runs(process)]


def runs(process: psutil.Process) -> bool:
    """Whether the process is running; zombies do not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_gone(processes: Iterable[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Wait until all processes have ended; return those still running after `within_s` seconds.

    `psutil.wait_procs` would not do, because it takes a zombie for a running process.
    """
    deadline = time.monotonic() + within_s
    running = [process for process in processes if runs(process)]
    while running and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
        running = [process for process in running if runs(process)]
    return running


def end(processes: Iterable[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Send SIGTERM, and SIGKILL to processes that still run after `within_s` seconds; return those that survive both."""
    all_processes = list(processes)
    _send(all_processes, signal.SIGTERM)
    running = wait_gone(all_processes, within_s)
    _send(running, signal.SIGKILL)
    return wait_gone(running, within_s=5)


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


def _send(processes: Iterable[psutil.Process], signal_number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(signal_number)  # psutil verifies that the pid was not reused
        except psutil.NoSuchProcess:
            continue  # it has ended
