"""Threads with a timeout, for calls that may hang."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class Threads:
    """Runs at most `number` calls concurrently, including calls that have timed out but still run. For one event loop only."""

    def __init__(self, number: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix=name)
        self._free_threads = asyncio.Semaphore(number)  # calls wait here and not in the pool, where they could not be cancelled

    async def run(self, seconds: float, call: Callable[..., Result], *args: Any) -> Result:
        """Run `call` in a thread and return its result.

        A call that has begun when its time is over still runs, and occupies its thread until it ends.

        Raises:
            TimeoutError: no thread was free, or the call did not finish, within `seconds`.
            Exception: anything raised by `call`.
        """
        loop = asyncio.get_running_loop()

        def release(_: object) -> None:
            """Count the thread of a call that has ended as free, even if the call had timed out. Any thread may call this."""
            with suppress(RuntimeError):  # raised if the loop is closed
                loop.call_soon_threadsafe(self._free_threads.release)

        async with asyncio.timeout(seconds):
            await self._free_threads.acquire()
            try:
                future = self._pool.submit(call, *args)
            except RuntimeError:  # raised if the pool is shut down
                self._free_threads.release()
                raise
            future.add_done_callback(release)
            return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Shut down the pool, without waiting for running calls to finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)
