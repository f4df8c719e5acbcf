"""Sends batches to Redis until it replies, and records whether Redis is available."""

import structlog
from redis.exceptions import RedisError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from dispatcher import _metrics
from dispatcher._effect_batch import EffectBatch
from dispatcher._events import Answered

log = structlog.get_logger(__name__)


class RedisRetry:
    """Sends batches with retries. `is_up` says whether the last round trip to Redis succeeded."""

    def __init__(self) -> None:
        self.is_up = False

    async def send(self, batch: EffectBatch) -> list[Answered | None]:
        """Send the batch and return the replies to its verbs; None for a verb whose queue has corrupt keys.

        Retries until Redis replies, which is safe: a verb may run twice.
        """
        if not batch:
            return []
        try:
            return await batch.run(repeated=False)
        except RedisError as exc:
            self._mark_down(str(exc))
        pauses = wait_exponential_jitter(multiplier=0.05, max=2, jitter=0.1)
        async for attempt in AsyncRetrying(retry=retry_if_exception_type(RedisError), wait=pauses, before_sleep=self._on_failure):
            with attempt:
                answers = await batch.run(repeated=True)
        self.mark_up()
        return answers

    def mark_up(self) -> None:
        """Record that Redis is available, at the start or again."""
        self.is_up = True
        _metrics.REDIS_UP.set(1)
        log.info("redis available; deliveries continue")

    def _mark_down(self, reason: str) -> None:
        self.is_up = False
        _metrics.REDIS_UP.set(0)
        log.warning("redis unavailable; deliveries paused", reason=reason)

    def _on_failure(self, state: RetryCallState) -> None:
        """Handle a failed retry, before the pause that precedes the next one."""
        self._mark_down(str(state.outcome.exception() if state.outcome else None))
