"""Measures the event loop's lag: the first sign that a process is overloaded."""

import asyncio
from collections.abc import Callable

EVERY_S = 0.5


async def watch_lag(record: Callable[[float], object]) -> None:
    """Call `record` with the event loop's lag in seconds, every `EVERY_S` seconds, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        record(max(0.0, loop.time() - due))
