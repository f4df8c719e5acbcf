"""Threads with a timeout, for calls that may hang."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class Threads:
    """Runs at most `number` calls concurrently, including calls that timed out but still run. For one event loop."""

    def __init__(self, number: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix=name)
        self._free = asyncio.Semaphore(number)  # prevents queueing in the pool, where a waiting call could not be cancelled

    async def run(self, seconds: float, call: Callable[..., Result], *args: Any) -> Result:
        """Run `call` in a thread and return its result. After a timeout the call continues; its thread is reused when it ends.

        Raises:
            TimeoutError: no thread was free, or the call did not finish, within `seconds`.
            Exception: anything raised by `call`.
        """
        loop = asyncio.get_running_loop()

        def release(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._free.release)

        async with asyncio.timeout(seconds):
            await self._free.acquire()
            try:
                begun = self._pool.submit(call, *args)
            except RuntimeError:  # the pool is shut down
                self._free.release()
                raise
            begun.add_done_callback(release)
            return await asyncio.wrap_future(begun)

    def close(self) -> None:
        """Shut down; running calls finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)
