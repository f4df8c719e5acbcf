"""Retries reads of a table whose files were removed during the read, for example by compaction."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

MAX_ATTEMPTS = 3

K = TypeVar("K")
V = TypeVar("V")
Find = Callable[[set[K], list[Exception]], Iterator[dict[K, V]]]


def retry_missing_files(wanted: Iterable[K], find: Find[K, V], renew: Callable[[], None] = lambda: None) -> Iterator[dict[K, V]]:
    """Yield the pieces that `find` yields for the wanted keys; retry for missing keys if a file was not found.

    `find` loads the table, gets the keys that are still missing, and appends errors to the list that it gets. `renew` is called
    before each retry.

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
        renew()
