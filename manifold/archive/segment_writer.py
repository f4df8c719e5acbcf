"""Writes ended journal files to the archive as segments, oldest first, and retries while the archive cannot be written."""

import asyncio
from collections.abc import Callable

import pyarrow as pa
import structlog

from manifold.archive import _metrics
from manifold.archive.journal import Journal, JournalFile
from manifold.archive.recorded import RecordedSegments
from manifold.archive.records import read_journal

AGE_CHECK_S = 0.5  # interval at which the age of the current journal file is checked

log = structlog.get_logger(__name__)


class SegmentWriter:
    """Writes segments, and deletes a journal file after all its messages are in the archive.

    Before a file is deleted, `on_last_seq` is called in a thread with the greatest seq of the file.
    """

    def __init__(
        self, journal: Journal, segments: RecordedSegments, on_last_seq: Callable[[int], None], *, node: int, retry_s: float
    ) -> None:
        self.problem: str | None = None  # why the archive cannot be written; None: it can be written
        self._journal = journal
        self._segments = segments
        self._on_last_seq = on_last_seq
        self._node = node
        self._retry_s = retry_s
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Make `run` check at once whether a journal file can be written as segments."""
        self._wake.set()

    async def run(self) -> None:
        """Write segments until this is cancelled."""
        while True:
            try:
                async with asyncio.timeout(AGE_CHECK_S):
                    await self._wake.wait()
            except TimeoutError:
                self._journal.rotate_if_old()
            self._wake.clear()
            while (file := self._journal.sealable()) is not None:
                if not await self._seal(file):
                    await asyncio.sleep(self._retry_s)
            _metrics.JOURNAL_FILES.set(len(self._journal.files))

    async def _seal(self, file: JournalFile) -> bool:
        """Write a journal file as segments, delete it, and return True.

        If the archive cannot be written, keep the file, and return False.
        """
        await self._journal.finish_writing(file)
        try:
            segments = await asyncio.to_thread(self._write, file)
        except (OSError, pa.ArrowException) as exc:
            if self.problem is None:
                log.warning("archive unwritable; retrying", journal_file=file.path.name, retry_s=self._retry_s, reason=str(exc))
            self.problem = f"the archive cannot be written ({exc}); the journal keeps everything meanwhile"
            _metrics.ARCHIVE_WRITABLE.set(0)
            return False
        if self.problem is not None:
            log.info("archive writable again", journal_file=file.path.name)
        self.problem = None
        _metrics.ARCHIVE_WRITABLE.set(1)
        await self._journal.remove(file, segments)
        if segments:
            log.info("segments written", paths=segments)
        return True

    def _write(self, file: JournalFile) -> list[str]:
        """Write the messages of a journal file as segments, and return the paths of the segments. Blocks."""
        content = read_journal(file.path)
        segments = self._segments.seal(content.envelopes(file.annotations), self._node)
        self._on_last_seq(max((message.seq for message in content.messages), default=0))
        return segments
