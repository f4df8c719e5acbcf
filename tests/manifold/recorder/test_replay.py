"""The catch-up after a gap covers everything, including messages sealed from the journal meanwhile."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from manifold.archive.journal import Journal
from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts import topics
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.seq import SeqSource
from manifold.recorder._replay import ReplaySource


class SealingArchive(RecordedSegments):
    """Seal the journal's files during a read, right after the listing."""

    def __init__(self, archive: Archive, journal: Journal) -> None:
        super().__init__(archive)
        self.journal, self.listings = journal, 0

    def _segments_since(self, stream: Stream, since_seq: int, node: int | None) -> list[str]:
        found = super()._segments_since(stream, since_seq, node)
        self.listings += 1
        if self.listings == 1:
            for file in self.journal.files:
                self.seal(self.journal_content[file.path], 0)
                file.path.unlink()
        return found

    journal_content: dict[Path, list[Envelope]]


def data(seq: int) -> Envelope:
    return Envelope(seq, datetime.now(UTC), Stream.DATA, topics.data_topic(f"d{seq}"), b"payload")


def test_a_journal_file_sealed_after_the_archive_listing_is_not_skipped(tmp_path: Path) -> None:
    seqs = SeqSource(0)
    old, *kept = [data(seqs.next()) for _ in range(5)]

    async def written() -> Journal:
        journal = Journal(tmp_path / "journal", max_bytes=1 << 20, max_age_s=60, retry_s=1, on_ended=lambda: None)
        journal.recover()
        await journal.append([old, *kept[:2]])
        journal.rotate()
        await journal.append(kept[2:])
        return journal

    journal = asyncio.run(written())
    archive = SealingArchive(Archive(f"file://{tmp_path}/archive"), journal)
    archive.journal_content = {journal.files[0].path: [old, *kept[:2]], journal.files[1].path: kept[2:]}
    again = ReplaySource(archive, journal, 0).messages(Stream.DATA, kept[0].seq, kept[-1].seq)
    assert [envelope.seq for envelope in again] == [envelope.seq for envelope in kept]
    journal.stop()
