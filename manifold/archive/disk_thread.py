"""A thread that runs blocking disk calls one after the other.

A `ThreadPoolExecutor` with a single thread does the same, but a call takes twice as long. This matters because every message
waits for such a call before it is acknowledged.
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
        """Run `function` in the thread, and return or raise its result. It runs even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            set_outcome: Callable[[], None]
            try:
                set_outcome = partial(future.set_result, function(*args))
            except Exception as exc:  # noqa: BLE001  # the caller raises it
                set_outcome = partial(future.set_exception, exc)
            with suppress(RuntimeError):  # the event loop may have been closed, and then nobody waits
                loop.call_soon_threadsafe(_set_unless_done, future, set_outcome)

        self.submit(call)
        return await future

    def submit(self, call: Callable[[], object]) -> None:
        """Run `call` in the thread, without waiting for it. Its exceptions are ignored.

        Raises:
            RuntimeError: the thread was stopped.
        """
        if self._stopped:
            raise RuntimeError(f"the thread {self._thread.name} was stopped")
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(call)

    def stop(self) -> None:
        """Wait until all submitted calls have run, and end the thread."""
        self._stopped = True
        if self._thread.ident is not None:
            self._calls.put(None)
            self._thread.join()

    def _work(self) -> None:
        """Run the submitted calls until `stop` puts None into the queue."""
        while (call := self._calls.get()) is not None:
            # Exceptions are not even logged: the cause may be a full disk, on which the log line could not be written either.
            with suppress(Exception):
                call()


def _set_unless_done(future: "asyncio.Future[T]", set_outcome: Callable[[], None]) -> None:
    """Set the outcome of the future, unless the future is done already, because the caller was cancelled."""
    if not future.done():
        set_outcome()
