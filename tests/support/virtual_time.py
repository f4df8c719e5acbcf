"""An event loop in which nobody waits: where all tasks sleep, its clock moves on to the next that wakes.

What a seed has chosen is played in the same order each time, however busy the machine is.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Clock(selectors.DefaultSelector):
    """Lets the time that the loop wants to wait pass at once. Nothing from outside is waited for."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits for something that nobody does"
        self.now_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at second 0."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._clock.now_s

    def stand_still(self, seconds: float) -> None:
        """Time passes in which no task runs."""
        self._clock.now_s += seconds


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, done in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
