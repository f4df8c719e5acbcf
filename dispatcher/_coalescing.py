"""Coalesces single lookups into batches."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Coalescer(Generic[Key]):
    """Collects keys and passes them to `lookup`, at most `max_batch` at a time, in at most `max_concurrent` concurrent calls.

    The keys that are added while all calls are running are passed together to the next call.
    """

    def __init__(
        self, name: str, lookup: Callable[[Sequence[Key]], Awaitable[None]], *, max_batch: int, max_concurrent: int = 1
    ) -> None:
        self._name, self._lookup, self._max_batch, self._max_concurrent = name, lookup, max_batch, max_concurrent
        self._keys: dict[Key, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, key: Key) -> None:
        """Look up `key`. If it is added again before its lookup begins, it is looked up once."""
        self._keys[key] = None
        self._start_task()

    async def close(self) -> None:
        """Cancel the running lookups, and forget the keys whose lookup has not begun."""
        self._keys.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_task(self) -> None:
        if self._keys and len(self._tasks) < self._max_concurrent:
            task = asyncio.create_task(self._run(), name=f"dispatcher.{self._name}")
            self._tasks.add(task)
            task.add_done_callback(self._on_end)

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._start_task()  # keys remain if an unexpected error of one lookup has ended the task

    async def _run(self) -> None:
        """Look up the keys, batch by batch, until none is left."""
        while self._keys:
            keys = list(islice(self._keys, self._max_batch))
            for key in keys:
                del self._keys[key]
            await self._lookup(keys)
