"""The check of `manifold doctor` that lists the newest days of the archive."""

from datetime import UTC, datetime, timedelta

from manifold.archive.ignored_files import ignored_count
from manifold.archive.segment import Interval
from manifold.archive.store import Archive
from manifold.console._diagnostic import Diagnostic
from manifold.contracts.errors import Permanent, Retryable
from manifold.settings import Settings

LOOKBACK = timedelta(days=2)


def check_archive(settings: Settings) -> Diagnostic:
    """Check that the archive can be listed; count its newest segments, and the files that ingest ignores.

    Listing the archive also logs the names of the ignored files.
    """
    now = datetime.now(UTC)
    try:
        segments = Archive(settings.archive, settings.s3).segments(Interval(now - LOOKBACK, now))
    except (Permanent, Retryable) as exc:
        return Diagnostic("archive", False, str(exc)[:200], "correct MANIFOLD_ARCHIVE_URL and MANIFOLD_S3_…, or move the file")
    ignored = ignored_count()
    ignored_note = f"; {ignored} other files are ignored, and named in the log" if ignored else ""
    return Diagnostic("archive", True, f"segments in the last {LOOKBACK.days} days: {len(segments)}{ignored_note}")
