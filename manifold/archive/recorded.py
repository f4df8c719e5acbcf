"""Writes and reads the segments of recorders: each message once, each segment named after its first seq."""

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
    """The segments of recorders in an archive. Every method blocks: call it in a thread.

    Raises:
        OSError: from every method, if the storage is unavailable or refuses.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def seal(self, envelopes: Iterable[Envelope], node: int) -> list[str]:
        """Write the envelopes that no segment has yet, by stream and hour; return the paths of all segments that have them."""
        ordered = sorted(envelopes, key=lambda e: (e.stream, e.seq))
        paths = []
        for (stream, _), group in groupby(ordered, key=lambda e: (e.stream, _hour(e))):
            rest = list(group)
            while rest:
                path = segment_path(stream, rest[0].seq, node)
                known = self._seqs(path)
                if not known:
                    self._archive.put(path, to_arrow(rest))
                    _metrics.SEGMENTS.labels(stream.value).inc()
                    known = {envelope.seq for envelope in rest}
                paths.append(path)
                rest = [envelope for envelope in rest if envelope.seq not in known]  # an existing segment may lack some
        return paths

    def read(self, path: str) -> list[Envelope]:
        """The envelopes of one segment.

        Raises:
            Unreadable: the file is not a segment.
        """
        return from_arrow(decode(path, self._archive.read(path)).messages)

    def recorded_since(self, stream: Stream, since_seq: int, node: int | None = None) -> Iterator[Envelope]:
        """Yield envelopes with seq ≥ `since_seq`, segment by segment, oldest first; of one recorder, or of all."""
        for path in self._segments_since(stream, since_seq, node):
            for envelope in self._readable(path):
                if envelope.seq >= since_seq:
                    yield envelope

    def latest(self, stream: Stream, node: int, count: int) -> list[Envelope]:
        """Up to `count` messages in seq order: this recorder's last ones on the last two days of the stream."""
        days = self._days(stream, "")[-2:]
        paths = sorted((path for day in days for path in self._list(f"{stream}/{day}") if _node(path) == node), key=_first)
        found: list[list[Envelope]] = []
        while paths and sum(map(len, found)) < count:
            found.append(self._readable(paths.pop()))
        return [envelope for segment in reversed(found) for envelope in segment][-count:]

    def last_seq(self, node: int) -> int:
        """This recorder's greatest seq in the archive; 0 if there is none."""
        return max((self._last_seq(stream, node) for stream in Stream), default=0)

    def _last_seq(self, stream: Stream, node: int) -> int:
        for day in reversed(self._days(stream, "")):
            for path in sorted((path for path in self._list(f"{stream}/{day}") if _node(path) == node), key=_first, reverse=True):
                with suppress(Unreadable):
                    mine = [seq for seq in seqs_of(self._archive, path) if node_of(seq) == node]
                    if mine:
                        return max(mine)
        return 0

    def _readable(self, path: str) -> list[Envelope]:
        """The envelopes of a file that others may have put there; none if the file is not a segment."""
        try:
            return self.read(path)
        except Unreadable as exc:
            log.warning("unreadable archive file skipped; ingest quarantines it", path=path, reason=str(exc))
            return []

    def _segments_since(self, stream: Stream, since_seq: int, node: int | None) -> list[str]:
        first_hour = hour_folder(stream, datetime_of(since_seq))
        days = self._days(stream, f"dt={datetime_of(since_seq):%Y-%m-%d}")
        paths = [path for day in days for path in self._list(f"{stream}/{day}") if path > first_hour]
        return sorted((path for path in paths if node is None or _node(path) == node), key=_first)

    def _days(self, stream: Stream, first: str) -> list[str]:
        return sorted(day for day in self._archive.days(stream) if day >= first)

    def _list(self, folder: str) -> list[str]:
        return [segment.path for segment in self._archive.listed(folder) if _NAME.search(segment.path)]

    def _seqs(self, path: str) -> set[int]:
        if not self._archive.exists(path):
            return set()
        with self._archive.open(path) as file:
            return set(pq.read_table(file, columns=["seq"]).column("seq").to_pylist())


def seq_ago(seq: int, seconds: float) -> int:
    """The smallest seq that could be assigned `seconds` before `seq` was."""
    return first_seq_at(datetime_of(seq) - timedelta(seconds=seconds))


def _hour(envelope: Envelope) -> int:
    return unix_ms_of(envelope.seq) // _HOUR_MS


def _first(path: str) -> int:
    match = _NAME.search(path)
    return int(match["first"]) if match else 0


def _node(path: str) -> int:
    match = _NAME.search(path)
    return int(match["node"]) if match else -1
