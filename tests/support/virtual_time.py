"""An event loop without waiting: when all tasks sleep, its clock jumps to the next wake-up.

The choices of a seed are replayed in the same order each time, however busy the machine is.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Clock(selectors.DefaultSelector):
    """Let requested waiting time pass at once. External events are not waited for."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits and nothing can wake one"
        self.now_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that begins at second 0."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._clock.now_s

    def stand_still(self, seconds: float) -> None:
        """Let time pass without running any task."""
        self._clock.now_s += seconds


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run the work in its own loop and return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
