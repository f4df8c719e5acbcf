"""Retries for the servers that the door depends on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from redis.exceptions import RedisError

from manifold.contracts.errors import message_of
from manifold.contracts.signals import topology
from manifold.signals import _metrics

RETRY_S = 1.0  # between attempts
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Retry:
    """Retries operations until they succeed. Several operations may wait at the same time, each for its own server."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}  # by name of the server or full queue

    @property
    def problem(self) -> str | None:
        """All current problems; None if there are none."""
        return "; ".join(self._problems.values()) or None

    async def until_done(self, server: str, work: Callable[[], Awaitable[T]]) -> T:
        """Retry `work` until it succeeds; return its result. RabbitMQ keeps the messages until then."""
        while True:
            try:
                result = await work()
            except (RedisError, OSError) as exc:
                self.set_problem(server, f"{server} unavailable ({message_of(exc)}); paused; resumes automatically")
                await asyncio.sleep(RETRY_S)
            else:
                self.set_problem(server, None)
                return result

    def set_problem(self, server: str, problem: str | None) -> None:
        """Set the problem of a server or full queue, or clear it with None. Log a new problem, and the end of the last one."""
        problem_before, is_new = self.problem, server not in self._problems
        if problem is None:
            self._problems.pop(server, None)
        else:
            self._problems[server] = problem
        if is_new and problem is not None:
            log.warning("waiting for dependency", server=server, reason=problem)
        if problem_before is not None and self.problem is None:
            log.info("dependency available again")
        _metrics.WAITING.set(bool(self._problems.keys() - topology.OWN_QUEUES))  # a full queue blocks only its own messages
