"""Waiting in a process that may be asked to stop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

LOOK_S = 0.01


async def done_before(stopping: "asyncio.Future[Any]", work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, but cancel it when `stopping` is done; returns whether it had finished by then.

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


async def until(question: Callable[[], bool]) -> None:
    """Poll `question` until it is true."""
    while not question():  # noqa: ASYNC110  # three parts become idle without an event; used at shutdown only
        await asyncio.sleep(LOOK_S)
