"""Determines the last seq that earlier processes have assigned, from the state file, the journal and the archive."""

from collections.abc import Sequence

import pyarrow as pa
import structlog

from manifold.archive.journal import JournalFile
from manifold.archive.recorded import RecordedSegments
from manifold.archive.records import JournalContent

Recovered = Sequence[tuple[JournalFile, JournalContent]]

log = structlog.get_logger(__name__)


def last_seq(state_seq: int, recovered: Recovered, archive: RecordedSegments, node: int) -> int:
    """The greatest seq that this recorder is known to have assigned.

    Args:
        state_seq: the last seq in the state file.
        recovered: the recovered files of the journal.
        archive: the segments in the archive. If it is unavailable, only the state and the journal count; they suffice unless the
            disk is new.
        node: the number of the recorder.
    """
    journal_seq = max((file.last_seq for file, _ in recovered), default=0)
    try:
        archive_seq = archive.last_seq(node)
    except (OSError, pa.ArrowException) as exc:
        log.warning("archive unreadable; last seq taken from state file and journal only", node=node, reason=str(exc))
        archive_seq = 0
    return max(state_seq, journal_seq, archive_seq)
