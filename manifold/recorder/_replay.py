"""Reads recorded messages back from archive and journal: those that the queues lack, and outcomes that they have forgotten."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from manifold.archive.journal import Journal
from manifold.archive.recorded import RecordedSegments, seq_ago
from manifold.archive.records import read_journal
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.seq import node_of
from manifold.recorder._kinds import is_change, needs_handoff

HANDED_OVER = (Stream.DATA, Stream.ECQ, Stream.TRIGGER)  # streams that are enqueued
SKEW_S = 120.0  # max clock difference between recorders


class ReplaySource:
    """Reads back this recorder's messages, or in the archive those of any recorder. Every method blocks: call it in a thread.

    Raises:
        OSError, pyarrow.ArrowException: from every method, if a file cannot be read.
    """

    def __init__(self, archive: RecordedSegments, journal: Journal, node: int) -> None:
        self._archive, self._journal, self._node = archive, journal, node

    def first(self, since: int, upto: int, streams: Sequence[Stream] = HANDED_OVER) -> int | None:
        """The smallest seq of this recorder from `since` to `upto`; None if there is none."""
        seqs = (next((e.seq for e in self.messages(stream, since, upto)), None) for stream in streams)
        return min((seq for seq in seqs if seq is not None), default=None)

    def messages(self, stream: Stream, since: int, upto: int) -> Iterator[Envelope]:
        """Yield this recorder's messages that must be enqueued: from the archive, then from the journal.

        A file that becomes segments meanwhile is read twice; none is skipped.
        """
        return (e for e in self._read(stream, since, upto, self._node) if needs_handoff(e.stream, e.topic))

    def outcomes(self, since: int) -> Iterator[Envelope]:
        """Yield outcomes from `since` on: of any recorder in the archive, and of this one in its journal.

        Those of other recorders begin `SKEW_S` earlier, since clocks differ.
        """
        return self._of_any(Stream.OUTCOME, since)

    def ecq_changes(self, since: int) -> Iterator[Envelope]:
        """As `outcomes`, for acknowledgements and rewinds of compacted queues."""
        return (e for e in self._of_any(Stream.ECQ, since) if is_change(e.topic))

    def campaigns(self, since: int) -> Iterator[Envelope]:
        """As `outcomes`, for orders of campaigns."""
        return self._of_any(Stream.CAMPAIGN, since)

    def journaled(self, stream: Stream) -> Iterator[Envelope]:
        """Yield the messages of this stream that are in the journal."""
        for file in list(self._journal.files):
            with suppress(FileNotFoundError):  # it has become segments
                yield from (e for e in read_journal(file.path).envelopes(file.annotations) if e.stream is stream)

    def _of_any(self, stream: Stream, since: int) -> Iterator[Envelope]:
        found = self._read(stream, seq_ago(since, SKEW_S), self._journal.last_seq, None)
        return (e for e in found if e.seq >= since or node_of(e.seq) != self._node)

    def _read(self, stream: Stream, since: int, upto: int, node: int | None) -> Iterator[Envelope]:
        files = list(self._journal.files)
        yield from (e for e in self._archive.recorded_since(stream, since, node) if e.seq <= upto or node is None)
        for file in files:
            try:
                envelopes = read_journal(file.path).envelopes(file.annotations)
            except FileNotFoundError:  # it has become segments, perhaps after the archive was listed: read those
                again = self._archive.recorded_since(stream, max(since, file.first_seq), self._node)
                envelopes = [e for e in again if e.seq <= file.last_seq]
            yield from (e for e in envelopes if e.stream is stream and since <= e.seq <= upto)
