"""Groups consecutive items up to a total size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Thing = TypeVar("Thing")


def grouped(things: Iterable[Thing], size_of: Callable[[Thing], int], most: int) -> Iterator[list[Thing]]:
    """Group the items, in order, up to a total size of `most` per group, but at least one."""
    group, size = list[Thing](), 0
    for thing in things:
        more = size_of(thing)
        if group and size + more > most:
            yield group
            group, size = [], 0
        group.append(thing)
        size += more
    if group:
        yield group
