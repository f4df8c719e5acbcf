"""Waits for a server that the door cannot do without."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from redis.exceptions import RedisError

from manifold.contracts.signals import topology
from manifold.signals import _metrics

RETRY_S = 1.0  # between two tries
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Retry:
    """Tries until it works. Several may wait at once, each for its own server."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}  # by server, or full queue

    @property
    def problem(self) -> str | None:
        """All that is waited for; None: nothing."""
        return "; ".join(self._problems.values()) or None

    async def until_done(self, server: str, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns, as soon as the server is there; until then nothing goes on, and RabbitMQ keeps what comes."""
        while True:
            try:
                done = await work()
            except (RedisError, OSError) as exc:
                self.say(server, f"{server} is away ({exc}): nothing is let through; it goes on by itself")
                await asyncio.sleep(RETRY_S)
            else:
                self.say(server, None)
                return done

    def say(self, server: str, problem: str | None) -> None:
        """This is why the server, or the queue, is waited for; None: it is there."""
        before, is_new = self.problem, server not in self._problems
        if problem is None:
            self._problems.pop(server, None)
        else:
            self._problems[server] = problem
        if is_new and problem is not None:
            log.warning("the door waits", reason=problem)
        if before is not None and self.problem is None:
            log.info("the door goes on")
        _metrics.WAITING.set(bool(self._problems.keys() - topology.OWN_QUEUES))  # a full queue stops only what goes there
