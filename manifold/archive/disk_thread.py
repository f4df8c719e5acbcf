"""A thread for calls that wait for a disk, one after the other.

A `ThreadPoolExecutor` of one thread does the same, and takes twice as long to be there and back, for which each message waits
that is acknowledged.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


class DiskThread:
    """Runs calls in the order in which they are given. The first one starts the thread; `stop` ends it."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._stopped = False

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """What `function` returns or raises. It runs also where nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            tell: Callable[[], None]
            try:
                tell = partial(answer.set_result, function(*args))
            except Exception as exc:  # noqa: BLE001  # it is for whoever waits
                tell = partial(answer.set_exception, exc)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_tell, answer, tell)

        self.submit(call)
        return await answer

    def submit(self, call: Callable[[], object]) -> None:
        """Run `call`, for which nobody waits; what it raises is lost.

        Raises:
            RuntimeError: it was stopped.
        """
        if self._stopped:
            raise RuntimeError(f"the thread {self._thread.name} was stopped")
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(call)

    def stop(self) -> None:
        """Return when all calls are through and the thread has ended."""
        self._stopped = True
        if self._thread.ident is not None:
            self._calls.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            with suppress(Exception):  # nobody waits for it, and where the disk is full not even a line of the log can be written
                call()


def _tell(answer: "asyncio.Future[T]", tell: Callable[[], None]) -> None:
    if not answer.done():  # else nobody waits any more
        tell()
