"""Recovers what an earlier process left in journal and archive."""

from collections.abc import Sequence

import pyarrow as pa
import structlog

from manifold.archive.journal import JournalFile
from manifold.archive.recorded import RecordedSegments
from manifold.archive.records import JournalContent

Recovered = Sequence[tuple[JournalFile, JournalContent]]

log = structlog.get_logger(__name__)


def last_seq(remembered: int, recovered: Recovered, archive: RecordedSegments, node: int) -> int:
    """The greatest seq known to be assigned by this node; `remembered` is the one in its own state."""
    journaled = max((file.last_seq for file, _ in recovered), default=0)
    try:
        archived = archive.last_seq(node)
    except (OSError, pa.ArrowException) as exc:  # the state has it too, unless the disk is new
        log.warning("archive unreadable; its last seq is taken from the state and the journal", reason=str(exc))
        archived = 0
    return max(remembered, journaled, archived)
