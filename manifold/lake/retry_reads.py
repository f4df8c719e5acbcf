"""Retries reads of a table whose files were removed during the read, for example by compaction."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

MAX_ATTEMPTS = 3

K = TypeVar("K")
V = TypeVar("V")
Find = Callable[[set[K], list[Exception]], Iterator[dict[K, V]]]


def retry_missing_files(
    wanted: Iterable[K], find: Find[K, V], before_retry: Callable[[], None] = lambda: None
) -> Iterator[dict[K, V]]:
    """Yield the pieces that `find` yields for the wanted keys; if a file was not found, retry for the keys still missing.

    `find` loads the table, reads the keys of its first argument, and appends errors to its second argument, a list.

    Raises:
        Exception: the first error of the last attempt; all keys that can be read were yielded before.
    """
    missing = set(wanted)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        failures: list[Exception] = []
        for piece in find(missing, failures):
            missing.difference_update(piece)
            yield piece
        if not failures or not missing:
            return
        is_file_gone = any(isinstance(failure, FileNotFoundError) for failure in failures)
        if attempt == MAX_ATTEMPTS or not is_file_gone:
            raise failures[0]
        before_retry()
