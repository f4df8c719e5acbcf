"""The journal: local files to which messages are written and synced before they are acknowledged.

A single thread writes, so that the event loop is not blocked.
"""

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
    """A file of the journal. It accepts messages until it is ended, and annotations until all its messages are settled."""

    def __init__(self, path: Path, fd: int, first_seq: int, size: int = 0) -> None:
        self.path = path
        self.first_seq = first_seq
        self.last_seq = first_seq
        self.size = size  # bytes of complete records
        self.opened_at = time.monotonic()
        self.is_ended = False  # whether the file accepts no more messages
        self.unsettled = 0  # number of messages that are not settled yet
        self.annotations: dict[int, Annotation] = {}  # seq → annotation
        self.sealed = asyncio.Event()  # set once all messages of the file are in the archive
        self.segments: list[str] = []  # paths of the segments with the messages of the file, once it is sealed
        self._fd = fd  # -1: closed

    def write(self, records: bytes, *, sync: bool) -> None:
        """Append records: all of them or, on an error, none. Must run in the journal's thread.

        Raises:
            OSError: the records were not written, and the file is ended.
        """
        if self._fd < 0:  # the records are annotations for a file that is being sealed; they are no longer needed
            return
        try:
            remaining = memoryview(records)
            while remaining:
                written = os.write(self._fd, remaining)
                remaining = remaining[written:]
            if sync:
                os.fdatasync(self._fd)
        except OSError:
            self.is_ended = True
            os.ftruncate(self._fd, self.size)  # readers stop at an incomplete record, so it must not stay in the file
            raise
        self.size += len(records)

    def close(self) -> None:
        """Close the file descriptor. Annotations that are written afterwards are dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Journal:
    """The journal of a recorder. The current file accepts messages; `on_ended` is called when it is ended.

    A file is ended when it reaches `max_bytes` or the age `max_age_s`, and after a write error.
    """

    def __init__(self, folder: Path, *, max_bytes: int, max_age_s: float, retry_s: float, on_ended: Callable[[], None]) -> None:
        self.files: list[JournalFile] = []  # oldest first
        self.problem: str | None = None  # why the journal cannot be written; None: it can be written
        self.last_seq = 0  # the greatest seq on disk, over all streams
        self.archived_seq = 0  # all messages up to this seq are in the archive
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._retry_s = retry_s
        self._on_ended = on_ended
        self._current: JournalFile | None = None  # the file that accepts messages; None: the next message opens one
        self._is_writing = False
        self._rotate_after_write = False
        self._thread = DiskThread("journal")

    def recover(self) -> list[tuple[JournalFile, JournalContent]]:
        """Open the files of an earlier process, oldest first; return each with its content.

        An incomplete record at the end of a file is removed. The files accept no more messages.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        recovered = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}"), key=_sort_key):
            content = read_journal(path)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(fd, content.length)
            first_seq = content.messages[0].seq if content.messages else 0
            file = JournalFile(path, fd, first_seq, content.length)
            file.last_seq = max((message.seq for message in content.messages), default=0)
            file.annotations = dict(content.annotations)
            file.is_ended = True
            self.files.append(file)
            self.last_seq = max(self.last_seq, file.last_seq)
            recovered.append((file, content))
        return recovered

    async def append(self, envelopes: Sequence[Envelope]) -> JournalFile:
        """Write the envelopes, which are in seq order; return their file once they are on disk.

        If the disk cannot be written, the write is retried until it succeeds.
        """
        records = frames(envelopes)
        while True:
            self._is_writing = True
            try:
                with _metrics.FSYNC_SECONDS.time():
                    file = await self._thread.run(self._write, records, envelopes[0].seq)
            except OSError as exc:
                self._is_writing = False
                self._set_problem(
                    f"the journal in {self._folder} is unwritable ({exc.strerror}); acknowledgements paused; free disk space"
                )
                self._leave_current_file()
                await asyncio.sleep(self._retry_s)
                continue
            self._is_writing = False
            self._set_problem(None)
            file.last_seq = envelopes[-1].seq
            self.last_seq = file.last_seq
            self._current = file
            if file not in self.files:
                self.files.append(file)
            if file.size >= self._max_bytes or self._rotate_after_write:  # `rotate` may have been called during the write
                self.rotate()
            return file

    def annotate(self, file: JournalFile, annotations: Sequence[Annotation]) -> None:
        """Record the results of enqueueing messages of `file`.

        The annotations are not synced. If a crash loses one, its message is only enqueued again.
        """
        file.annotations.update({annotation.seq: annotation for annotation in annotations})
        records = b"".join(map(frame, annotations))
        self._thread.submit(partial(self._write_annotations, file, records))

    def rotate(self) -> None:
        """End the current file, if there is one. If messages are being written, the file is ended after this write."""
        self._rotate_after_write = self._is_writing
        if self._current is not None and not self._is_writing:
            self._current.is_ended = True
            self._leave_current_file()

    def rotate_if_old(self) -> None:
        """End the current file if it has reached its maximum age."""
        if self._current is not None and time.monotonic() - self._current.opened_at >= self._max_age_s:
            self.rotate()

    def sealable(self) -> JournalFile | None:
        """The oldest file, if it is ended and all its messages are settled, so that it can become segments; else None."""
        if not self.files:
            return None
        oldest = self.files[0]
        return oldest if oldest.is_ended and oldest.unsettled == 0 else None

    async def remove(self, file: JournalFile, segments: list[str]) -> None:
        """Delete a file whose messages are all in the archive, in these segments."""
        self.files.remove(file)
        self.archived_seq = max(self.archived_seq, file.last_seq)
        await self._thread.run(self._delete, file)
        file.segments = segments
        file.sealed.set()

    async def finish_writing(self, file: JournalFile) -> None:
        """Wait until all annotations of `file` are written, and close it."""
        await self._thread.run(file.close)

    def stop(self) -> None:
        """Stop the thread and close the files. The files stay on disk."""
        self._thread.stop()
        for file in self.files:
            file.close()

    def _write(self, records: bytes, first_seq: int) -> JournalFile:
        """Write records to the current file, or to a new file named after `first_seq`; return the file."""
        file = self._current
        if file is None or file.is_ended:
            file = self._open(first_seq)
        try:
            file.write(records, sync=True)
        except OSError:
            if file.size == 0:  # a new file, which has no message now
                file.close()
                file.path.unlink()
            raise
        return file

    def _open(self, first_seq: int) -> JournalFile:
        """Create a new file whose first message has the seq `first_seq`."""
        path = self._folder / f"{first_seq}{SUFFIX}"
        attempt = 0
        while path.exists():  # a failed attempt to write the same message has left a file
            attempt += 1
            path = self._folder / f"{first_seq}.{attempt}{SUFFIX}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)
        sync_folder(self._folder)
        return JournalFile(path, fd, first_seq)

    def _write_annotations(self, file: JournalFile, records: bytes) -> None:
        try:
            file.write(records, sync=False)
        except OSError as exc:  # the annotations are in memory too, and after a crash the messages are enqueued again
            log.warning("journal annotations not written; kept in memory", file=file.path.name, reason=exc.strerror)

    def _delete(self, file: JournalFile) -> None:
        file.close()
        file.path.unlink(missing_ok=True)

    def _leave_current_file(self) -> None:
        """Make the next message open a new file, and report that the current one is ended."""
        self._current = None
        self._on_ended()

    def _set_problem(self, problem: str | None) -> None:
        """Store why the journal cannot be written (None: it can be written), and log a change."""
        if problem != self.problem:
            if problem:
                log.error("journal unwritable", reason=problem)
            else:
                log.info("journal writable again", folder=str(self._folder))
            self.problem = problem
            _metrics.JOURNAL_WRITABLE.set(problem is None)


def _sort_key(path: Path) -> tuple[int, int]:
    """The sort key of a journal file, oldest first: first seq and number of the attempt, from its name."""
    first_seq, _, attempt = path.name.removesuffix(SUFFIX).partition(".")
    return int(first_seq), int(attempt or 0)
