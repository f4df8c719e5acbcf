"""The few facts that outlive a recorder, saved by two threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recorder._state import StateFile


def test_two_threads_that_save_at_once_never_leave_half_a_file(tmp_path: Path) -> None:
    state = StateFile(tmp_path)

    def save(number: int) -> None:
        state.state.gap_since = number
        state.save()

    def read(_: int) -> None:
        StateFile(tmp_path).load()

    state.save()
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work, n) for n in range(200) for work in (save, state.remember_seq, read)]
    assert [each.exception() for each in done if each.exception()] == []
    assert StateFile(tmp_path).load().last_seq == 199
