"""The journal: local files that are synced before anything is acknowledged. One thread writes; the event loop continues."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog

from manifold.archive import _metrics
from manifold.archive.disk_thread import DiskThread
from manifold.archive.records import Annotation, JournalContent, frame, frames, read_journal
from manifold.contracts.envelope import Envelope
from manifold.lake.storage import sync_folder

SUFFIX = ".journal"

log = structlog.get_logger(__name__)


class JournalFile:
    """One file of the journal. It accepts messages until it is closed, and annotations until all its messages are settled."""

    def __init__(self, path: Path, fd: int, first_seq: int, size: int = 0) -> None:
        self.path, self.first_seq, self.last_seq = path, first_seq, first_seq
        self.size = size  # bytes of complete records
        self.opened_at = time.monotonic()
        self.is_ended = False  # accepts no more messages
        self.unsettled = 0  # messages that are not settled yet
        self.annotations: dict[int, Annotation] = {}
        self.sealed = asyncio.Event()  # all its messages are in the archive, in `segments`
        self.segments: list[str] = []
        self._fd = fd

    def write(self, records: bytes, *, sync: bool) -> None:
        """Append records atomically. Runs in the journal's thread.

        Raises:
            OSError: nothing was added, and the file must accept no more messages.
        """
        if self._fd < 0:
            return  # a late annotation of a file that is becoming segments
        try:
            rest = memoryview(records)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            if sync:
                os.fdatasync(self._fd)
        except OSError:
            self.is_ended = True
            os.ftruncate(self._fd, self.size)  # a torn record would hide all that follow
            raise
        self.size += len(records)

    def close(self) -> None:
        """Close the file descriptor; annotations that come later are dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Journal:
    """The files of one recorder, oldest first. `on_ended` is called when a file accepts no more messages."""

    def __init__(self, folder: Path, *, max_bytes: int, max_age_s: float, retry_s: float, on_ended: Callable[[], None]) -> None:
        self.files: list[JournalFile] = []
        self.problem: str | None = None
        self.last_seq = 0  # the greatest on disk, of any stream
        self.archived_seq = 0  # everything up to here is in the archive
        self._folder, self._max_bytes, self._max_age_s, self._retry_s = folder, max_bytes, max_age_s, retry_s
        self._on_ended = on_ended
        self._current: JournalFile | None = None
        self._writing = self._rotate_after = False
        self._thread = DiskThread("journal")

    def recover(self) -> list[tuple[JournalFile, JournalContent]]:
        """Open the files of an earlier process: torn tails are truncated, and every file accepts no more messages."""
        self._folder.mkdir(parents=True, exist_ok=True)
        found = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}"), key=_age):
            content = read_journal(path)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(fd, content.length)
            file = JournalFile(path, fd, content.messages[0].seq if content.messages else 0, content.length)
            file.last_seq = max((message.seq for message in content.messages), default=0)
            file.annotations, file.is_ended = dict(content.annotations), True
            self.files.append(file)
            self.last_seq = max(self.last_seq, file.last_seq)
            found.append((file, content))
        return found

    async def append(self, envelopes: Sequence[Envelope]) -> JournalFile:
        """Write the envelopes (in seq order) and return once they are on disk; retries for as long as the disk refuses."""
        records = frames(envelopes)
        while True:
            self._writing = True
            try:
                with _metrics.FSYNC_SECONDS.time():
                    file = await self._thread.run(self._write, records, envelopes[0].seq)
            except OSError as exc:
                self._writing = False
                self._set_problem(
                    f"the journal in {self._folder} is unwritable ({exc.strerror}); acknowledgements paused; free disk space"
                )
                self._roll()
                await asyncio.sleep(self._retry_s)
                continue
            self._writing = False
            self._set_problem(None)
            self.last_seq = file.last_seq = envelopes[-1].seq
            self._current = file
            if file not in self.files:
                self.files.append(file)
            if file.size >= self._max_bytes or self._rotate_after:
                self.rotate()
            return file

    def annotate(self, file: JournalFile, annotations: Sequence[Annotation]) -> None:
        """Record the results of enqueueing. Not synced: an annotation lost in a crash only causes one more offer."""
        file.annotations.update({annotation.seq: annotation for annotation in annotations})
        records = b"".join(map(frame, annotations))
        self._thread.submit(partial(self._write_notes, file, records))

    def rotate(self) -> None:
        """End the current file, if there is one: it accepts no more messages, except a group that is being written."""
        self._rotate_after = self._writing
        if self._current is not None and not self._writing:
            self._current.is_ended = True
            self._roll()

    def rotate_if_old(self) -> None:
        """End the current file if it has reached its maximum age."""
        if self._current is not None and time.monotonic() - self._current.opened_at >= self._max_age_s:
            self.rotate()

    def sealable(self) -> JournalFile | None:
        """The oldest file, if it can become segments now."""
        return next((file for file in self.files[:1] if file.is_ended and file.unsettled == 0), None)

    async def remove(self, file: JournalFile, segments: list[str]) -> None:
        """Delete a file whose messages are all in the archive."""
        self.files.remove(file)
        self.archived_seq = max(self.archived_seq, file.last_seq)
        await self._thread.run(self._delete, file)
        file.segments = segments
        file.sealed.set()

    async def finish_writing(self, file: JournalFile) -> None:
        """Return once all annotations of `file` are written."""
        await self._thread.run(file.close)

    def stop(self) -> None:
        """Stop the thread; the files stay as they are."""
        self._thread.stop()
        for file in self.files:
            file.close()

    def _write(self, records: bytes, first_seq: int) -> JournalFile:
        file = self._current
        if file is None or file.is_ended:
            file = self._open(first_seq)
        try:
            file.write(records, sync=True)
        except OSError:
            if file.size == 0:
                file.close()
                file.path.unlink()
            raise
        return file

    def _open(self, first_seq: int) -> JournalFile:
        path = self._folder / f"{first_seq}{SUFFIX}"
        attempt = 0
        while path.exists():  # an earlier attempt at the same message failed halfway
            attempt += 1
            path = self._folder / f"{first_seq}.{attempt}{SUFFIX}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)
        sync_folder(self._folder)
        return JournalFile(path, fd, first_seq)

    def _write_notes(self, file: JournalFile, records: bytes) -> None:
        try:
            file.write(records, sync=False)
        except OSError as exc:  # the annotations are in memory too; after a crash, the messages are offered again
            log.warning("journal annotations not written", file=file.path.name, reason=exc.strerror)

    def _delete(self, file: JournalFile) -> None:
        file.close()
        file.path.unlink(missing_ok=True)

    def _roll(self) -> None:
        self._current = None
        self._on_ended()

    def _set_problem(self, problem: str | None) -> None:
        """Note why the journal is unwritable, or None; log a change."""
        if problem != self.problem:
            if problem:
                log.error("journal unwritable", reason=problem)
            else:
                log.info("journal writable again")
            self.problem = problem
            _metrics.JOURNAL_WRITABLE.set(problem is None)


def _age(path: Path) -> tuple[int, int]:
    first_seq, _, attempt = path.name.removesuffix(SUFFIX).partition(".")
    return int(first_seq), int(attempt or 0)
