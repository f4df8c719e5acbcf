"""Waiting in a process that may be asked to stop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

POLL_INTERVAL_S = 0.01


async def done_before(stopping: "asyncio.Future[Any]", work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it finishes or `stopping` completes, in which case `work` is cancelled. Returns whether it finished.

    Raises:
        Exception: any error of `work`.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait((stopping, task), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
        return False
    task.result()
    return True


async def until(condition: Callable[[], bool]) -> None:
    """Poll `condition` until it is true."""
    while not condition():  # noqa: ASYNC110  # polling at shutdown is simpler than an event for each of the three parts
        await asyncio.sleep(POLL_INTERVAL_S)
