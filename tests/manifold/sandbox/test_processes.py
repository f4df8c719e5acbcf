"""Process ownership, with real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from manifold.sandbox.platform.processes import Record, end, family, runs, wait_gone
from tests.support.servers import wait_until

IDLE = [sys.executable, "-c", "import signal; signal.pause()"]
STUBBORN = [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"]
# A group leader with a child in its group and a grandchild in its own session.
TREE = """
import signal, subprocess, sys
idle = "import signal; signal.pause()"
child = "import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', %r], start_new_session=True)" % idle
child += "; signal.pause()"
subprocess.Popen([sys.executable, "-c", child])
signal.pause()
"""


@contextmanager
def started(command: list[str], *, own_group: bool = False) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0 if own_group else None)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def recorded(pid: int) -> Record:
    record = Record.of(pid)
    assert record is not None
    return record


def whole_tree(record: Record) -> list[psutil.Process]:
    wait_until(lambda: len(family(record)) == 3, what="the leader, its child and its grandchild")
    return family(record)


def test_the_pid_record_stays_valid_after_exec(tmp_path: Path) -> None:
    file = tmp_path / "idle.process"
    with started([sys.executable, "-m", "manifold.sandbox.platform.exec_with_record", str(file), *STUBBORN]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        record = Record.read(file)
        assert record is not None
        assert record.pid == process.pid
        assert record.process() is not None
    assert record.process() is None


def test_a_missing_or_partly_written_record_is_none(tmp_path: Path) -> None:
    torn = tmp_path / "torn.process"
    torn.write_text('{"pid": 1')

    assert Record.read(tmp_path / "none.process") is None
    assert Record.read(torn) is None


def test_a_reused_pid_is_not_ours() -> None:
    with started(IDLE) as process:
        earlier = Record(process.pid, recorded(process.pid).born - 60)
        assert earlier.process() is None
        assert family(earlier) == []


def test_a_zombie_is_not_running() -> None:
    with started(IDLE) as process:
        record = recorded(process.pid)
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: record.process() is None)
        assert family(record) == []


def test_a_process_tree_is_ended_down_to_the_last_grandchild() -> None:
    with started([sys.executable, "-c", TREE], own_group=True) as process:
        record = recorded(process.pid)
        members = whole_tree(record)
        assert end(members, 10) == []
        assert not any(runs(member) for member in members)


def test_a_process_tree_is_found_after_its_leader_ended() -> None:
    with started([sys.executable, "-c", TREE], own_group=True) as process:
        record = recorded(process.pid)
        members = whole_tree(record)
        process.kill()
        process.wait()
        left = family(record)
        assert {member.pid for member in left} == {member.pid for member in members} - {process.pid}
        assert end(left, 10) == []


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    with started(STUBBORN) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        members = family(recorded(process.pid))
        assert wait_gone(members, 0.1) == members
        assert end(members, 0.1) == []


def test_this_process_is_recorded_as_itself() -> None:
    assert Record.of_this_process() == Record.of(os.getpid())
