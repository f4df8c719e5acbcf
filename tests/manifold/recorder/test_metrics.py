"""The metric behind an alert: outcomes that do not reach the disk."""

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis

from manifold.contracts import keys
from manifold.queues import Policy, Queues
from manifold.recorder import _metrics
from manifold.recorder._outcome_drain import OutcomeDrain
from manifold.settings import Settings
from tests.support.servers import Server

HELD_S = 0.2


def test_an_outcome_that_is_not_on_disk_ages(own_redis: Server) -> None:
    async def scenario() -> list[float]:
        held = asyncio.Event()

        async def record(_: Sequence[bytes]) -> None:
            await held.wait()

        def lag() -> float:
            return next(iter(_metrics.OUTCOME_LAG_SECONDS.collect())).samples[0].value

        async with Redis(port=own_redis.port) as redis:
            outcomes = OutcomeDrain(Queues(redis, Policy.of(Settings())), "recorder-0", 10, record)
            lags = [lag()]
            task = asyncio.create_task(outcomes.run())
            await redis.xadd(keys.OUTCOMES, {"o": b"{}"})
            async with asyncio.timeout(30):
                while lag() < HELD_S:  # noqa: ASYNC110  # polled, because no event reports it
                    await asyncio.sleep(0.01)
                lags.append(lag())
                held.set()
                while lag() > 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            task.cancel()
            return lags

    before, during = asyncio.run(scenario())
    assert (before, during >= HELD_S) == (0, True)
