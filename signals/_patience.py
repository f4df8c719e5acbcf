"""Waiting for a server without which nothing is let through."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from redis.exceptions import RedisError

from signals import _metrics

RETRY_S = 1.0  # between two tries
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Patience:
    """Tries until it works. `problem` says what is waited for; None: nothing."""

    def __init__(self) -> None:
        self.problem: str | None = None

    async def until_done(self, server: str, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns, as soon as the server is there; until then nothing goes on, and RabbitMQ keeps what comes."""
        while True:
            try:
                done = await work()
            except (RedisError, OSError) as exc:
                self.say(f"{server} is away ({exc}): nothing is let through; it goes on by itself")
                await asyncio.sleep(RETRY_S)
            else:
                self.say(None)
                return done

    def say(self, problem: str | None) -> None:
        """This is waited for; None: it is there."""
        if problem is not None and self.problem is None:
            log.warning("the door waits", reason=problem)
        if problem is None and self.problem is not None:
            log.info("the door goes on")
        self.problem = problem
        _metrics.WAITING.set(problem is not None)
