"""Finds how far the lake lags behind the archive: when the oldest recent segment began that no run has ingested."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

from pyiceberg.catalog import Catalog

from manifold.contracts.archive_files import is_data_file
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import MAX_SEQ, datetime_of
from manifold.lake.files import Files
from manifold.lake.reads import read_segments
from manifold.settings import Settings

_SEGMENT = re.compile(r"(\d{1,19})-\d{1,4}(\.replay)?\.parquet")
_HOUR = re.compile(r"/dt=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")


def oldest_not_in_lake(catalog: Catalog, settings: Settings, now: datetime) -> datetime | None:
    """The start of the oldest segment that is in the archive and not in the lake; None if the lake has all recent segments.

    Recent segments are those that a scheduled ingest covers: they began within `ingest_window_days` before `now`. Files outside
    the archive's day folders are ignored.
    """
    since = now - timedelta(days=settings.ingest_window_days)
    start_by_path = dict(_recent_segments(Files(settings.archive, settings.s3), since, now))
    if not start_by_path:
        return None
    ingested = read_segments(catalog, since)
    return min((start for path, start in start_by_path.items() if path not in ingested), default=None)


def _recent_segments(archive: Files, since: datetime, now: datetime) -> Iterator[tuple[str, datetime]]:
    """Yield the path and start of each segment in the archive that began at or after `since`."""
    day_count = (now.date() - since.date()).days + 1  # the days of `since` and `now` included
    days = [since + timedelta(days=number) for number in range(day_count)]
    for stream in Stream:
        for day in days:
            for path in archive.below(f"{stream}/dt={day:%Y-%m-%d}"):
                start = _start_of(path)
                if is_data_file(path) and start is not None and since <= start:
                    yield path, start


def _start_of(path: str) -> datetime | None:
    """When a segment began: the instant in the seq of its file name, or else the hour of its folder; None without either.

    A replay's seq is that of the original message, which may be old. It has waited only since the hour of its folder.
    """
    name = _SEGMENT.fullmatch(PurePosixPath(path).name)
    if name:
        seq, is_replay = int(name[1]), name[2] is not None
        if not is_replay and seq <= MAX_SEQ:
            return datetime_of(seq)
    folder = _HOUR.search(path)
    if folder is None:
        return None
    return datetime.strptime(f"{folder[1]}{folder[2]}", "%Y-%m-%d%H").replace(tzinfo=UTC)
