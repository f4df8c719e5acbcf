"""Logs ignored files in the archive, which are neither data files nor unfinished; each file once."""

from functools import lru_cache

MAX_REMEMBERED = 10_000  # files that are remembered as logged; if there are more, the oldest may be logged again


@lru_cache(maxsize=MAX_REMEMBERED)  # the cache makes repeated calls do nothing
def log_ignored_file(url: str, path: str, reason: str) -> None:
    """Log an ignored file. Further calls with the same arguments in this process do nothing."""
    import structlog  # imported here because it is slow, and most archives have no ignored files

    structlog.get_logger(__name__).warning("file in the archive ignored", archive=url, path=path, reason=reason)


def ignored_count() -> int:
    """The number of files that this process has ignored, at most MAX_REMEMBERED."""
    return log_ignored_file.cache_info().currsize
