"""Repeats reads of table files that were removed in the meantime, for example by compaction."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

MAX_ATTEMPTS = 3  # each with reloaded tables

K = TypeVar("K")
V = TypeVar("V")
Find = Callable[[set[K], list[Exception]], Iterator[dict[K, V]]]


def retry_missing_files(wanted: Iterable[K], find: Find[K, V], renew: Callable[[], None] = lambda: None) -> Iterator[dict[K, V]]:
    """Yield the pieces that `find` yields; if a file is gone, call it again for the rest, after `renew`.

    `find` gets the keys that are left, and a list to which it adds the failures that did not stop it.

    Raises:
        Exception: the first failure of the last attempt; everything readable was yielded before.
    """
    left = set(wanted)
    for number in range(1, MAX_ATTEMPTS + 1):
        failures: list[Exception] = []
        for piece in find(left, failures):
            left.difference_update(piece)
            yield piece
        if not failures or not left:
            return
        if number == MAX_ATTEMPTS or not any(isinstance(failure, FileNotFoundError) for failure in failures):
            raise failures[0]
        renew()
