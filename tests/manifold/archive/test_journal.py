"""Journal files: closed by size or age, undamaged by a full disk, recovered completely."""

import asyncio
import resource
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from manifold.archive.journal import Journal
from manifold.archive.records import Annotation, frames, read_journal
from manifold.contracts.envelope import Envelope, Stream

BOUND_S = 60


def envelope(seq: int, size: int = 10) -> Envelope:
    return Envelope(seq, datetime(2026, 8, 1, tzinfo=UTC), Stream.TRIGGER, "t", b"x" * size)


def journal(folder: Path, *, max_bytes: int = 1 << 20, max_age_s: float = 3600) -> Journal:
    return Journal(folder, max_bytes=max_bytes, max_age_s=max_age_s, retry_s=0.01, on_ended=lambda: None)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()

    asyncio.run(bounded())


async def until(question: Callable[[], bool]) -> None:
    while not question():  # noqa: ASYNC110  # no event to wait for; bounded by `run`
        await asyncio.sleep(0)


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Let no file of this process grow beyond `limit` bytes, root included."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_file_closes_at_its_size_and_is_sealable_once_settled(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = journal(tmp_path, max_bytes=100)
        first = await files.append([envelope(1, 200)])
        first.unsettled += 1
        second = await files.append([envelope(2)])
        assert [file.path.name for file in files.files] == ["1.journal", "2.journal"]
        assert (first.is_ended, second.is_ended, files.sealable()) == (True, False, None)
        first.unsettled -= 1
        assert files.sealable() is first
        await files.remove(first, ["a/segment"])
        assert (first.segments, first.path.exists(), files.sealable()) == (["a/segment"], False, None)
        files.stop()

    run(scenario)


def test_a_file_closes_at_its_age_but_not_during_a_write(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = journal(tmp_path, max_age_s=0)
        files.rotate_if_old()
        assert files.files == []
        writing = asyncio.create_task(files.append([envelope(1)]))
        await until(lambda: files._is_writing)
        files.rotate()
        file = await writing
        assert file.is_ended  # as soon as the group was written
        assert (await files.append([envelope(2)])) is not file
        files.rotate_if_old()
        assert all(file.is_ended for file in files.files)
        files.stop()

    run(scenario)


def test_a_full_disk_delays_a_group_and_tears_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = journal(tmp_path)
        await files.append([envelope(1)])
        with full_disk(600):
            waiting = asyncio.create_task(files.append([envelope(2, 1000)]))
            await until(lambda: files.problem is not None)
            assert "File too large" in str(files.problem)
            assert not waiting.done()
        await waiting
        health = files.problem
        assert health is None
        assert [[m.seq for m in read_journal(file.path).messages] for file in files.files] == [[1], [2]]
        files.stop()

    run(scenario)


def test_a_note_that_does_not_fit_is_kept_in_memory_and_hides_no_later_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = journal(tmp_path)
        file = await files.append([envelope(1)])
        with full_disk(file.size + 3):
            files.annotate(file, [Annotation(1, applied=True)])
            await files._thread.run(lambda: None)
        later = await files.append([envelope(2)])
        assert later is not file
        assert file.annotations == {1: Annotation(1, applied=True)}
        assert [read_journal(f.path).length for f in (file, later)] == [file.size, later.size]
        files.stop()

    run(scenario)


def test_recovery_truncates_the_torn_tail_and_keeps_notes(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = journal(tmp_path)
        file = await files.append([envelope(1), envelope(2)])
        files.annotate(file, [Annotation(1, applied=True)])
        files.stop()
        with file.path.open("ab") as raw:
            raw.write(frames([envelope(3)])[:-1])
        again = journal(tmp_path)
        ((found, content),) = again.recover()
        assert [message.seq for message in content.messages] == [1, 2]
        assert (found.is_ended, found.last_seq, found.annotations) == (True, 2, {1: Annotation(1, applied=True)})
        assert found.path.stat().st_size == content.length
        again.stop()

    run(scenario)
