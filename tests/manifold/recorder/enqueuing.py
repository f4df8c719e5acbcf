"""The direct enqueue alone: without a recorder around it, over the queues of a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable

from manifold.contracts import keys
from manifold.queues import Policy, Queues, connect, is_cluster
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._direct_enqueuer import DirectEnqueuer
from manifold.recorder._lake import Lake
from manifold.settings import Settings

WINDOW_MS = 900_000
Scenario = Callable[[DirectEnqueuer, Queues], Awaitable[None]]


def run(url: str, settings: Settings, scenario: Scenario, *, loaded: bool = True) -> None:
    """Plays `scenario` over the queues at `url`, which are `loaded` or not."""

    async def main() -> None:
        async with connect(url) as client:
            queues = Queues(client, Policy.of(settings))
            await queues.join_wakes()
            enqueuer = DirectEnqueuer(queues, DedupeWindow(WINDOW_MS), Lake(settings))
            if loaded:
                await load(enqueuer, queues)
            await scenario(enqueuer, queues)

    asyncio.run(main())


async def load(enqueuer: DirectEnqueuer, queues: Queues) -> None:
    """The queues hold all that is pending, and the recorder has looked what they lack."""
    for mark in keys.loaded_marks(of_cluster=is_cluster(queues.redis)):
        await queues.redis.set(mark, 7)
    enqueuer.loading = (await queues.marks(0)).loading


async def is_named_until_mended(enqueuer: DirectEnqueuer, queues: Queues, queue: str, key: str) -> bool:
    """Whether `queue` is named for its spoilt `key`: then, until that is gone. False: queueing does not look at this key."""
    if not enqueuer.corrupt.problems:
        return False
    (problem,) = enqueuer.corrupt.problems
    assert problem.startswith(f"{queue}: {key} is a string")
    await queues.redis.delete(key)
    await enqueuer.corrupt.recheck()
    assert enqueuer.corrupt.problems == []
    return True
