"""Measures the event loop's lag: the first sign that a process is overloaded."""

import asyncio
from collections.abc import Callable

EVERY_S = 0.5


async def watch_lag(note: Callable[[float], object]) -> None:
    """Report the loop's lag in seconds to `note`, periodically."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        note(max(0.0, loop.time() - due))
