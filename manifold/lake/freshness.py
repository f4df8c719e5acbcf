"""Finds how far the lake is behind the archive: the oldest segment of the last days that no run has ingested. No Spark."""

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
    """When the oldest segment began that is in the archive and not in the lake; None if the lake has all of the last days.

    These are the days that a scheduled ingest covers. Files put outside the day folders are not seen.
    """
    since = now - timedelta(days=settings.ingest_window_days)
    waiting = dict(_recorded(Files(settings.archive, settings.s3), since, now))
    if not waiting:
        return None
    known = read_segments(catalog, since)
    return min((began for path, began in waiting.items() if path not in known), default=None)


def _recorded(archive: Files, since: datetime, now: datetime) -> Iterator[tuple[str, datetime]]:
    """Yield the path and start of each segment that began since `since`."""
    days = [since + timedelta(days=n) for n in range((now.date() - since.date()).days + 1)]
    for stream in Stream:
        for day in days:
            for path in archive.below(f"{stream}/dt={day:%Y-%m-%d}"):
                began = _began_at(path)
                if is_data_file(path) and began is not None and since <= began:
                    yield path, began


def _began_at(path: str) -> datetime | None:
    seq, hour = _SEGMENT.fullmatch(PurePosixPath(path).name), _HOUR.search(path)
    # A replay has an old seq, but has only been waiting since the hour in which it was put there.
    if seq and not seq[2] and int(seq[1]) <= MAX_SEQ:
        return datetime_of(int(seq[1]))
    return datetime.strptime(f"{hour[1]}{hour[2]}", "%Y-%m-%d%H").replace(tzinfo=UTC) if hour else None
