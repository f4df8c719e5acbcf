"""Reads of table files that may be removed meanwhile, by compaction for example: a read that failed so is repeated."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

LOOKS = 3  # each with the tables loaded anew

K = TypeVar("K")
V = TypeVar("V")
Look = Callable[[set[K], list[Exception]], Iterator[dict[K, V]]]


def look_again(wanted: Iterable[K], look: Look[K, V], renew: Callable[[], None] = lambda: None) -> Iterator[dict[K, V]]:
    """Yields the pieces that `look` finds; where a file has gone, what is left is looked for again, after `renew`.

    `look` gets what is left, and a list to which it adds the failures that it went on after.

    Raises:
        Exception: the first failure of the last look; all that can be read was yielded before.
    """
    left = set(wanted)
    for number in range(1, LOOKS + 1):
        failures: list[Exception] = []
        for piece in look(left, failures):
            left.difference_update(piece)
            yield piece
        if not failures or not left:
            return
        if number == LOOKS or not any(isinstance(failure, FileNotFoundError) for failure in failures):
            raise failures[0]
        renew()
