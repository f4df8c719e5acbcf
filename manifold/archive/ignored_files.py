"""Logs the files in the archive that are neither data nor unfinished, each once."""

from functools import lru_cache

MAX_NAMED = 10_000  # above this, the oldest is forgotten, and logged again


@lru_cache(maxsize=MAX_NAMED)
def name_ignored(url: str, path: str, reason: str) -> None:
    """Log a file once per process, however often the archive is listed."""
    import structlog  # here, because listing an archive without problems must not wait for the import

    structlog.get_logger(__name__).warning("file in the archive ignored", archive=url, path=path, reason=reason)


def ignored_count() -> int:
    """The number of files that this process has ignored, at most MAX_NAMED."""
    return name_ignored.cache_info().currsize
