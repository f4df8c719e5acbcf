"""The direct enqueue alone, without a recorder, over queues in a real Redis."""

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
    """Run `scenario` over the queues at `url`, which are `loaded` or not."""

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
    """Mark the queues as loaded, with the recorder aware of it."""
    for mark in keys.loaded_marks(of_cluster=is_cluster(queues.redis)):
        await queues.redis.set(mark, 7)
    enqueuer.load_id = (await queues.marks(0)).load_id


async def is_named_until_mended(enqueuer: DirectEnqueuer, queues: Queues, queue: str, key: str) -> bool:
    """Check that `queue` is named for its corrupt `key` until that is removed; False if enqueueing does not read this key."""
    if not enqueuer.corrupt.problems:
        return False
    (problem,) = enqueuer.corrupt.problems
    assert problem.startswith(f"{queue}: {key} is a string")
    await queues.redis.delete(key)
    await enqueuer.corrupt.recheck()
    assert enqueuer.corrupt.problems == []
    return True
