"""The state that survives a restart, saved by two threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from manifold.archive.state_file import ServiceState, StateFile


class Counted(ServiceState):
    saved: int | None = None


def test_concurrent_saves_never_leave_half_a_file(tmp_path: Path) -> None:
    state = StateFile(tmp_path, Counted())

    def save(number: int) -> None:
        state.state.saved = number
        state.save()

    def read(_: int) -> None:
        StateFile(tmp_path, Counted()).load()

    state.save()
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work, n) for n in range(200) for work in (save, state.remember_seq, read)]
    assert [each.exception() for each in done if each.exception()] == []
    assert StateFile(tmp_path, Counted()).load().last_seq == 199


def test_without_a_file_the_state_is_the_initial_one(tmp_path: Path) -> None:
    assert StateFile(tmp_path, Counted(last_seq=7)).load() == Counted(last_seq=7)
