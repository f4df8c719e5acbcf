"""Groups consecutive items up to a total size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def grouped(items: Iterable[Item], size_of: Callable[[Item], int], max_size: int) -> Iterator[list[Item]]:
    """Split the items into consecutive groups, each of a total size of at most `max_size`. A larger item is a group by itself."""
    group: list[Item] = []
    group_size = 0
    for item in items:
        item_size = size_of(item)
        if group and group_size + item_size > max_size:
            yield group
            group = []
            group_size = 0
        group.append(item)
        group_size += item_size
    if group:
        yield group
