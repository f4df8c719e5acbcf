"""Reads recorded messages back from the archive and the journal, so that they can be enqueued again."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from manifold.archive.journal import Journal
from manifold.archive.recorded import RecordedSegments, seq_ago
from manifold.archive.records import read_journal
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.seq import node_of
from manifold.recorder._kinds import is_change, needs_handoff

HANDED_OVER = (Stream.DATA, Stream.ECQ, Stream.TRIGGER)  # streams that are enqueued
MAX_SKEW_S = 120.0  # maximum clock difference between recorders, in seconds


class ReplaySource:
    """Reads recorded messages from this recorder's journal, and from the archive, which has the messages of all recorders.

    Every method blocks: call it in a thread.

    Raises:
        OSError, pyarrow.ArrowException: from every method, if a file cannot be read.
    """

    def __init__(self, archive: RecordedSegments, journal: Journal, node: int) -> None:
        self._archive, self._journal, self._node = archive, journal, node

    def smallest_seq(self, first_seq: int, last_seq: int, streams: Sequence[Stream] = HANDED_OVER) -> int | None:
        """The smallest seq among this recorder's messages in these streams; None if there is no message.

        Only messages from `first_seq` to `last_seq` count, both inclusive.
        """
        seqs = []
        for stream in streams:
            first_message = next(self.messages(stream, first_seq, last_seq), None)
            if first_message is not None:
                seqs.append(first_message.seq)
        return min(seqs, default=None)

    def messages(self, stream: Stream, first_seq: int, last_seq: int) -> Iterator[Envelope]:
        """Yield this recorder's messages that must be enqueued, first from the archive and then from the journal.

        Both seqs are inclusive. A message may be yielded twice, if its journal file moves to the archive during the iteration.
        No message is skipped.
        """
        envelopes = self._read(stream, first_seq, last_seq, self._node)
        return (envelope for envelope in envelopes if needs_handoff(envelope.stream, envelope.topic))

    def outcomes(self, first_seq: int) -> Iterator[Envelope]:
        """Yield the outcomes with seqs from `first_seq` on: of all recorders in the archive, and of this one in its journal.

        For the other recorders, the range begins `MAX_SKEW_S` earlier, because their clocks may be late.
        """
        return self._of_any_recorder(Stream.OUTCOME, first_seq)

    def ecq_changes(self, first_seq: int) -> Iterator[Envelope]:
        """Yield the acknowledgements and rewinds of compacted queues, selected as in `outcomes`."""
        return (envelope for envelope in self._of_any_recorder(Stream.ECQ, first_seq) if is_change(envelope.topic))

    def campaigns(self, first_seq: int) -> Iterator[Envelope]:
        """Yield the orders of campaigns, selected as in `outcomes`."""
        return self._of_any_recorder(Stream.CAMPAIGN, first_seq)

    def journaled(self, stream: Stream) -> Iterator[Envelope]:
        """Yield the messages of this stream that are in the journal."""
        for file in list(self._journal.files):
            with suppress(FileNotFoundError):  # the file has moved to the archive
                envelopes = read_journal(file.path).envelopes(file.annotations)
                yield from (envelope for envelope in envelopes if envelope.stream is stream)

    def _of_any_recorder(self, stream: Stream, first_seq: int) -> Iterator[Envelope]:
        """Yield the messages of a stream, selected as in `outcomes`."""
        envelopes = self._read(stream, seq_ago(first_seq, MAX_SKEW_S), self._journal.last_seq, node=None)
        return (envelope for envelope in envelopes if envelope.seq >= first_seq or node_of(envelope.seq) != self._node)

    def _read(self, stream: Stream, first_seq: int, last_seq: int, node: int | None) -> Iterator[Envelope]:
        """Yield the messages from `first_seq` to `last_seq`: those of `node` in the archive, and of this recorder in its journal.

        If `node` is None, yield the messages of all recorders in the archive, even those after `last_seq`.
        """
        files = list(self._journal.files)  # before the archive is read: so a file that moves in the meantime is not skipped
        archived = self._archive.recorded_since(stream, first_seq, node)
        yield from (envelope for envelope in archived if node is None or envelope.seq <= last_seq)
        for file in files:
            try:
                envelopes = read_journal(file.path).envelopes(file.annotations)
            except FileNotFoundError:  # the file has moved to the archive, perhaps after the archive was listed: read it there
                archived = self._archive.recorded_since(stream, max(first_seq, file.first_seq), self._node)
                envelopes = [envelope for envelope in archived if envelope.seq <= file.last_seq]
            yield from (envelope for envelope in envelopes if envelope.stream is stream and first_seq <= envelope.seq <= last_seq)
