"""Restores the state of a recorder from the journal and the archive of an earlier process."""

from collections.abc import Iterable

import pyarrow as pa
import structlog

from manifold.archive.recorded import RecordedSegments
from manifold.archive.records import JournalRecord
from manifold.archive.recovery import Recovered
from manifold.contracts.envelope import DUPLICATE_OF, Envelope, Stream
from manifold.contracts.seq import seq_of
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._kinds import needs_handoff
from manifold.recorder._parser import DIGEST, Parser
from manifold.recorder._redelivered import MAX_REMEMBERED, RedeliveredMessages

log = structlog.get_logger(__name__)


def remember_triggers(dedupe: DedupeWindow, recovered: Recovered, archive: RecordedSegments, parser: Parser, now_ms: int) -> None:
    """Fill the dedupe window with the accepted triggers of the archive (from all recorders) and of this recorder's journal."""
    since = max(0, seq_of(now_ms - dedupe.window_ms, 0, 0))
    try:
        _remember(dedupe, archive.recorded_since(Stream.TRIGGER, since), parser)
    except (OSError, pa.ArrowException) as exc:
        log.warning("archive unreadable; repeated triggers may not be recognized as duplicates", reason=str(exc))
    for file, content in recovered:
        envelopes = content.envelopes(file.annotations)
        _remember(dedupe, (envelope for envelope in envelopes if envelope.stream is Stream.TRIGGER), parser)


def restore_redelivered(redelivered: RedeliveredMessages, recovered: Recovered, archive: RecordedSegments, node: int) -> None:
    """Restore the messages that the broker may redeliver: this recorder's latest messages in the archive and in the journal."""
    try:
        redelivered.restore(archive.latest(Stream.ECQ, node, MAX_REMEMBERED))
    except (OSError, pa.ArrowException) as exc:
        log.warning("archive unreadable; redelivered messages may be recorded twice", reason=str(exc))
    for _, content in recovered:
        redelivered.restore(content.envelopes())


def first_unsettled(recovered: Recovered) -> int | None:
    """The smallest seq of a message that may not have been enqueued, because it has no annotation; None if there is none."""
    seqs = [
        message.seq
        for file, content in recovered
        for message in content.messages
        if _needs_handoff(message) and message.seq not in file.annotations
    ]
    return min(seqs, default=None)


def _needs_handoff(message: JournalRecord) -> bool:
    """Whether a message of the journal must be enqueued."""
    offerable = message.refused_because is None and DUPLICATE_OF not in message.headers
    return offerable and needs_handoff(message.stream, message.topic)


def _remember(dedupe: DedupeWindow, envelopes: Iterable[Envelope], parser: Parser) -> None:
    """Add the triggers that are neither refused nor duplicates to the dedupe window; call it in seq order."""
    for envelope in envelopes:
        if envelope.refused_because is None and envelope.duplicate_of is None:
            # Another program may have recorded a trigger without the header. Such a trigger is parsed, and gets no digest if it
            # is invalid.
            digest = envelope.headers.get(DIGEST) or parser.read_back(envelope).digest
            if digest is not None:
                dedupe.first(digest, envelope.seq)
