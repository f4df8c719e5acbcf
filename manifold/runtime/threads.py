"""Threads for calls that may hang, which are waited for with a timeout."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class Threads:
    """Runs at most `number` calls side by side, including calls that timed out and still run. For one loop."""

    def __init__(self, number: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix=name)
        self._free = asyncio.Semaphore(number)  # so that nothing queues in the pool: what waits there, nobody can take away

    async def run(self, seconds: float, call: Callable[..., Result], *args: Any) -> Result:
        """What `call` returns. A call that takes too long goes on, and its thread serves others when it comes back.

        Raises:
            TimeoutError: no thread was free, or the call was not through, for so many seconds.
            Exception: whatever `call` raises.
        """
        loop = asyncio.get_running_loop()

        def leave(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._free.release)

        async with asyncio.timeout(seconds):
            await self._free.acquire()
            try:
                begun = self._pool.submit(call, *args)
            except RuntimeError:  # closed
                self._free.release()
                raise
            begun.add_done_callback(leave)
            return await asyncio.wrap_future(begun)

    def close(self) -> None:
        """Let the threads end after what they have in hand."""
        self._pool.shutdown(wait=False, cancel_futures=True)
