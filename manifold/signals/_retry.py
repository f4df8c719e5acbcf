"""Retries of operations on servers, and the state of what the door depends on: servers, and queues that may be full."""

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
    """Retries operations until they succeed, and keeps the problem of each server or full queue that the door waits for.

    Several operations may wait at the same time, each for its own dependency.
    """

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}  # by dependency: the name of a server or full queue

    @property
    def problem(self) -> str | None:
        """All current problems; None if there are none."""
        return "; ".join(self._problems.values()) or None

    async def until_done(self, server: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`, and again while it fails because `server` is unavailable; return its result.

        RabbitMQ keeps the messages until then.
        """
        while True:
            try:
                result = await work()
            except (RedisError, OSError) as exc:
                self.set_problem(server, f"{server} unavailable ({message_of(exc)}); paused; resumes automatically")
                await asyncio.sleep(RETRY_S)
            else:
                self.set_problem(server, None)
                return result

    def set_problem(self, dependency: str, problem: str | None) -> None:
        """Set the problem of a server or full queue, or clear it with None.

        The beginning and the end of a problem are logged, but not a change of its text.
        """
        had_problem = dependency in self._problems
        if problem is not None:
            self._problems[dependency] = problem
            if not had_problem:
                log.warning("waiting for dependency", dependency=dependency, reason=problem)
        elif had_problem:
            del self._problems[dependency]
            log.info("dependency available again", dependency=dependency, still_unavailable=sorted(self._problems))
        unavailable_servers = self._problems.keys() - topology.OWN_QUEUES  # a full queue blocks only its own messages
        _metrics.WAITING.set(bool(unavailable_servers))
