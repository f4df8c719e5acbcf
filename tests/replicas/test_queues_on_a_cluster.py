"""The promises of the queues, repeated on Redis Cluster."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from manifold.contracts.errors import Retryable
from manifold.queues import Loader, Policy, Queues
from manifold.queues import connect as connect_async
from tests.manifold.queues import test_invariants, test_outcomes, test_queue_stats, test_queues
from tests.manifold.queues.conftest import POLICY, Use
from tests.manifold.queues.test_invariants import *  # noqa: F403
from tests.manifold.queues.test_outcomes import *  # noqa: F403
from tests.manifold.queues.test_queue_stats import *  # noqa: F403  # its tests run here with the fixtures of this module
from tests.manifold.queues.test_queues import *  # noqa: F403
from tests.replicas.cluster import LocalCluster


@pytest.fixture
def use(url_of: Callable[[str], str], redis: Redis) -> Callable[..., Any]:
    """Run `body(queues)` on its own event loop with the dispatcher's rights."""

    def run(body: Use, policy: Policy = POLICY) -> Any:
        async def main() -> Any:
            async with connect_async(url_of("dispatcher")) as client:
                return await body(Queues(client, policy))

        return asyncio.run(main())

    return run


@pytest.mark.parametrize("master", range(3))
def test_data_loss_of_a_master_is_noticed(cluster: LocalCluster, redis: Redis, master: int) -> None:
    loader = Loader(redis, POLICY)
    loader.mark_loaded(test_queues.NOW)
    assert loader.is_loaded()

    cluster.clients()[master].flushall()

    assert not loader.is_loaded()


@pytest.mark.parametrize("master", range(3))
def test_a_rolled_back_master_rolls_back_the_common_mark(
    cluster: LocalCluster, redis: Redis, use: Callable[..., Any], master: int
) -> None:
    Loader(redis, POLICY).mark_loaded(test_queues.NOW)
    older, newer = test_queues.SEQ[2], test_queues.SEQ[5]
    node = cluster.clients()[master]

    async def body(queues: Queues) -> None:
        marks = await queues.advance_watermark(0, await queues.marks(0), older)
        found: Any = node.keys("handed:*")
        before: dict[Any, Any] = {key: node.get(key) for key in found}
        marks = await queues.advance_watermark(0, marks, newer)
        for key, value in before.items():
            node.set(key, value)  # as in a lagging replica

        with pytest.raises(Retryable):
            await queues.advance_watermark(0, marks, newer)
        assert (await queues.marks(0)).enqueued_seq == older

    use(body)


def test_idle_connections_closed_by_nodes_are_replaced(cluster: LocalCluster, url_of: Callable[[str], str]) -> None:
    async def ask() -> None:
        async with connect_async(url_of("dispatcher")) as redis:
            assert await redis.ping(target_nodes="primaries")
            for node in cluster.clients():  # in a thread, so that the loop notices the closed connections
                await asyncio.to_thread(node.client_kill_filter, _type="normal", skipme=True)
            assert await redis.ping(target_nodes="primaries")

    asyncio.run(ask())


def test_the_tests_of_both_suites_are_included() -> None:
    theirs = {
        name
        for suite in (test_queue_stats, test_outcomes, test_queues, test_invariants)
        for name in vars(suite)
        if name.startswith("test_")
    }

    assert theirs <= set(globals())
