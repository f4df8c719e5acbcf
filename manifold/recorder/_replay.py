"""Reads recorded messages back from the archive and the journal, for the queues to get them again."""

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

    def first(self, since: int, upto: int, streams: Sequence[Stream] = HANDED_OVER) -> int | None:
        """The smallest seq of this recorder's messages in these streams, `since` and `upto` inclusive; None if there is none."""
        first_messages = (next(self.messages(stream, since, upto), None) for stream in streams)
        return min((message.seq for message in first_messages if message is not None), default=None)

    def messages(self, stream: Stream, since: int, upto: int) -> Iterator[Envelope]:
        """Yield this recorder's messages that must be enqueued, first from the archive and then from the journal.

        Both seqs are inclusive. A message may be yielded twice, if its journal file moves to the archive during the iteration.
        None is skipped.
        """
        envelopes = self._read(stream, since, upto, self._node)
        return (envelope for envelope in envelopes if needs_handoff(envelope.stream, envelope.topic))

    def outcomes(self, since: int) -> Iterator[Envelope]:
        """Yield the outcomes with seqs from `since` on: those of all recorders in the archive, and of this one in its journal.

        For the other recorders, the range begins `MAX_SKEW_S` earlier, because their clocks may be late.
        """
        return self._of_any_recorder(Stream.OUTCOME, since)

    def ecq_changes(self, since: int) -> Iterator[Envelope]:
        """Yield the acknowledgements and rewinds of compacted queues, selected as in `outcomes`."""
        return (envelope for envelope in self._of_any_recorder(Stream.ECQ, since) if is_change(envelope.topic))

    def campaigns(self, since: int) -> Iterator[Envelope]:
        """Yield the orders of campaigns, selected as in `outcomes`."""
        return self._of_any_recorder(Stream.CAMPAIGN, since)

    def journaled(self, stream: Stream) -> Iterator[Envelope]:
        """Yield the messages of this stream that are in the journal."""
        for file in list(self._journal.files):
            with suppress(FileNotFoundError):  # the file has moved to the archive
                envelopes = read_journal(file.path).envelopes(file.annotations)
                yield from (envelope for envelope in envelopes if envelope.stream is stream)

    def _of_any_recorder(self, stream: Stream, since: int) -> Iterator[Envelope]:
        envelopes = self._read(stream, seq_ago(since, MAX_SKEW_S), self._journal.last_seq, node=None)
        return (envelope for envelope in envelopes if envelope.seq >= since or node_of(envelope.seq) != self._node)

    def _read(self, stream: Stream, since: int, upto: int, node: int | None) -> Iterator[Envelope]:
        """Yield the messages from `since` to `upto` in the archive, of the recorder `node`, and in the journal.

        With `node` None, the messages of all recorders in the archive are yielded, even after `upto`.
        """
        files = list(self._journal.files)  # before the archive is read: so a file that moves in the meantime is not skipped
        archived = self._archive.recorded_since(stream, since, node)
        yield from (envelope for envelope in archived if envelope.seq <= upto or node is None)
        for file in files:
            try:
                envelopes = read_journal(file.path).envelopes(file.annotations)
            except FileNotFoundError:  # the file has moved to the archive, perhaps after the archive was listed: read it there
                archived = self._archive.recorded_since(stream, max(since, file.first_seq), self._node)
                envelopes = [envelope for envelope in archived if envelope.seq <= file.last_seq]
            yield from (envelope for envelope in envelopes if envelope.stream is stream and since <= envelope.seq <= upto)
