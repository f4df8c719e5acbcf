"""Turns closed journal files into segments, oldest first, and retries while the archive is unwritable."""

import asyncio
from collections.abc import Callable

import pyarrow as pa
import structlog

from manifold.archive import _metrics
from manifold.archive.journal import Journal, JournalFile
from manifold.archive.recorded import RecordedSegments
from manifold.archive.records import read_journal

TICK_S = 0.5

log = structlog.get_logger(__name__)


class SegmentWriter:
    """Writes segments; a journal file is deleted only once all its messages are in the archive.

    `on_last_seq` is called in a thread with the greatest seq of a file before the file is deleted.
    """

    def __init__(
        self, journal: Journal, segments: RecordedSegments, on_last_seq: Callable[[int], None], *, node: int, retry_s: float
    ) -> None:
        self.problem: str | None = None
        self._journal, self._segments, self._on_last_seq = journal, segments, on_last_seq
        self._node, self._retry_s = node, retry_s
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Note that a file may be ready."""
        self._wake.set()

    async def run(self) -> None:
        """Write segments until cancelled."""
        while True:
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                self._journal.rotate_if_old()
            self._wake.clear()
            while (file := self._journal.sealable()) is not None:
                if not await self._seal(file):
                    await asyncio.sleep(self._retry_s)
            _metrics.JOURNAL_FILES.set(len(self._journal.files))

    async def _seal(self, file: JournalFile) -> bool:
        """Write a journal file as segments, then remove it; keep it and return False if the archive cannot be written."""
        await self._journal.finish_writing(file)
        try:
            segments = await asyncio.to_thread(self._write, file)
        except (OSError, pa.ArrowException) as exc:
            if self.problem is None:
                log.warning("archive unwritable; retrying", file=file.path.name, reason=str(exc))
            self.problem = f"the archive cannot be written ({exc}); the journal keeps everything meanwhile"
            _metrics.ARCHIVE_WRITABLE.set(0)
            return False
        if self.problem is not None:
            log.info("archive writable again")
        self.problem = None
        _metrics.ARCHIVE_WRITABLE.set(1)
        await self._journal.remove(file, segments)
        if segments:
            log.info("segments written", paths=segments)
        return True

    def _write(self, file: JournalFile) -> list[str]:
        content = read_journal(file.path)
        segments = self._segments.seal(content.envelopes(file.annotations), self._node)
        self._on_last_seq(max((message.seq for message in content.messages), default=0))
        return segments
