"""A thread for blocking disk calls, one after the other.

A `ThreadPoolExecutor` with one thread does the same, but its round trip takes twice as long, and every acknowledged message waits
for one.
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
    """Runs calls in order. The first call starts the thread; `stop` ends it."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._stopped = False

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run `function` and return or raise its result. It runs even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            deliver: Callable[[], None]
            try:
                deliver = partial(answer.set_result, function(*args))
            except Exception as exc:  # noqa: BLE001  # passed on to the caller
                deliver = partial(answer.set_exception, exc)
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                loop.call_soon_threadsafe(_set_result, answer, deliver)

        self.submit(call)
        return await answer

    def submit(self, call: Callable[[], object]) -> None:
        """Run `call` in the background; its exceptions are ignored.

        Raises:
            RuntimeError: the thread was stopped.
        """
        if self._stopped:
            raise RuntimeError(f"the thread {self._thread.name} was stopped")
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(call)

    def stop(self) -> None:
        """Finish all calls and end the thread."""
        self._stopped = True
        if self._thread.ident is not None:
            self._calls.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            with suppress(Exception):  # nobody waits for it, and on a full disk not even a log line can be written
                call()


def _set_result(answer: "asyncio.Future[T]", deliver: Callable[[], None]) -> None:
    if not answer.done():  # otherwise the caller was cancelled
        deliver()
