"""Writes and reads the segments of recorders. Each message is in one segment only; a segment is named after its first seq."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import groupby

import pyarrow.parquet as pq
import structlog

from manifold.archive import _metrics
from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.probing import seqs_of
from manifold.archive.store import Archive
from manifold.contracts.envelope import Envelope, Stream, from_arrow, hour_folder, segment_path, to_arrow
from manifold.contracts.seq import datetime_of, first_seq_at, node_of, unix_ms_of

_NAME = re.compile(r"dt=(?P<day>[\d-]+)/hour=(?P<hour>\d\d)/(?P<first>\d+)-(?P<node>\d+)\.parquet$")
_HOUR_MS = 3_600_000

log = structlog.get_logger(__name__)


class RecordedSegments:
    """The segments of recorders in an archive. Every method blocks, so an event loop must call it in a thread.

    Raises:
        OSError: from every method, if the storage is unavailable or denies access.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def seal(self, envelopes: Iterable[Envelope], node: int) -> list[str]:
        """Write the envelopes to segments, one per stream and hour; return the paths of all segments that contain the envelopes.

        Segments may exist already, from an earlier attempt that was interrupted. They are not changed; envelopes that they lack
        are written to further segments.
        """
        ordered = sorted(envelopes, key=lambda e: (e.stream, e.seq))
        paths = []
        for (stream, _), group in groupby(ordered, key=lambda e: (e.stream, _hour(e))):
            remaining = list(group)
            while remaining:
                path = segment_path(stream, remaining[0].seq, node)
                archived_seqs = self._seqs(path)
                if not archived_seqs:  # no earlier attempt has written this segment
                    self._archive.put(path, to_arrow(remaining))
                    _metrics.SEGMENTS.labels(stream.value).inc()
                    archived_seqs = {envelope.seq for envelope in remaining}
                paths.append(path)
                remaining = [envelope for envelope in remaining if envelope.seq not in archived_seqs]
        return paths

    def read(self, path: str) -> list[Envelope]:
        """The envelopes of one segment.

        Raises:
            Unreadable: the file is not a segment.
        """
        return from_arrow(decode(path, self._archive.read(path)).messages)

    def recorded_since(self, stream: Stream, since_seq: int, node: int | None = None) -> Iterator[Envelope]:
        """Yield the stream's envelopes with seq ≥ `since_seq`, segment by segment, oldest segment first.

        With `node`, only the segments of this recorder are read.
        """
        for path in self._segments_since(stream, since_seq, node):
            for envelope in self._read_or_skip(path):
                if envelope.seq >= since_seq:
                    yield envelope

    def latest(self, stream: Stream, node: int, count: int) -> list[Envelope]:
        """The last `count` messages of this recorder, in seq order; only messages of the stream's last two days."""
        paths = [path for day in self._days(stream)[-2:] for path in self._paths(f"{stream}/{day}", node)]
        paths.sort(key=_first_seq)
        envelopes: list[Envelope] = []
        while paths and len(envelopes) < count:
            envelopes = self._read_or_skip(paths.pop()) + envelopes
        return envelopes[-count:]

    def last_seq(self, node: int) -> int:
        """The greatest seq of this recorder in the archive; 0 if there is none."""
        return max((self._last_seq(stream, node) for stream in Stream), default=0)

    def _last_seq(self, stream: Stream, node: int) -> int:
        """The greatest seq in the newest segment of this recorder and stream that has any; 0 if there is none."""
        for day in reversed(self._days(stream)):
            for path in sorted(self._paths(f"{stream}/{day}", node), key=_first_seq, reverse=True):
                with suppress(Unreadable):  # written by another program; ingest quarantines it
                    own_seqs = [seq for seq in seqs_of(self._archive, path) if node_of(seq) == node]
                    if own_seqs:
                        return max(own_seqs)
        return 0

    def _read_or_skip(self, path: str) -> list[Envelope]:
        """The envelopes of a segment; empty if the file is not a valid segment, because another program may have written it."""
        try:
            return self.read(path)
        except Unreadable as exc:
            log.warning("unreadable archive file skipped; ingest quarantines it", path=path, reason=str(exc))
            return []

    def _segments_since(self, stream: Stream, since_seq: int, node: int | None) -> list[str]:
        """Paths of the segments that may contain seqs ≥ `since_seq`, oldest first."""
        first_hour = hour_folder(stream, datetime_of(since_seq))
        first_day = f"dt={datetime_of(since_seq):%Y-%m-%d}"
        # Paths sort by hour, and a path in a folder sorts after the folder: the segments of the first hour are included.
        days = [day for day in self._days(stream) if day >= first_day]
        paths = [path for day in days for path in self._paths(f"{stream}/{day}", node) if path > first_hour]
        return sorted(paths, key=_first_seq)

    def _days(self, stream: Stream) -> list[str]:
        """The names of the stream's day folders, oldest first."""
        return sorted(self._archive.days(stream))

    def _paths(self, folder: str, node: int | None) -> list[str]:
        """Paths of the segments of this recorder (None: of all recorders) in the folder and below."""
        paths: list[str] = []
        for segment in self._archive.listed(folder):
            name = _NAME.search(segment.path)
            if name is not None and (node is None or int(name["node"]) == node):
                paths.append(segment.path)
        return paths

    def _seqs(self, path: str) -> set[int]:
        """The seqs in the segment; empty if it does not exist."""
        if not self._archive.exists(path):
            return set()
        with self._archive.open(path) as file:
            return set(pq.read_table(file, columns=["seq"]).column("seq").to_pylist())


def seq_ago(seq: int, seconds: float) -> int:
    """The smallest seq that a recorder could assign at the instant `seconds` before `seq` was assigned."""
    return first_seq_at(datetime_of(seq) - timedelta(seconds=seconds))


def _hour(envelope: Envelope) -> int:
    """The hour in the envelope's seq, as a number of hours since 1970."""
    return unix_ms_of(envelope.seq) // _HOUR_MS


def _first_seq(path: str) -> int:
    """The first seq of a recorder's segment, from its path."""
    name = _NAME.search(path)
    assert name is not None, f"{path} is not the path of a recorder's segment"
    return int(name["first"])
