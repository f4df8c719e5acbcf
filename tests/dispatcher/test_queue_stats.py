"""The collector of queue statistics: it counts incrementally and ends expired entries of absent vehicles."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from dispatcher._queue_stats import MAX_SKEW_MS, QueueStatsCollector
from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import seq_of, wall_clock_ms
from manifold.queues import Policy, Queues, QueueStats, connect
from manifold.queues.verbs.ecq import Append
from manifold.queues.verbs.fills import Enqueue
from manifold.settings import Settings
from tests.support.servers import Server

POLICY = Policy.of(Settings())


def with_queues(server: Server, body: Callable[[Queues], Awaitable[None]]) -> None:
    async def main() -> None:
        redis = connect(f"redis://127.0.0.1:{server.port}/0")
        await redis.flushall()
        await body(Queues(redis, POLICY))
        await redis.aclose()

    asyncio.run(main())


async def counted(queues: Queues, *names: str) -> QueueStats:
    """Run collectors until one of them has written its statistics."""
    takers = [asyncio.create_task(QueueStatsCollector(queues, name).run()) for name in names]
    async with asyncio.timeout(20):
        while (stats := await QueueStats.load(queues.redis)) is None:  # noqa: ASYNC110  # the statistics are polled from Redis
            await asyncio.sleep(0.01)
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    return stats


def test_expired_entries_of_an_absent_vehicle_are_recorded_and_ended(redis_server: Server) -> None:
    """Pending and parked alike; an entry that expired within the last minute is left to a dispatcher with a slow clock."""
    born = wall_clock_ms() - POLICY.retention_ms
    instants = (born - MAX_SKEW_MS - 9, born - MAX_SKEW_MS - 5, born - 1, born + 3_600_000)
    old, parked, just, young = (seq_of(ms, 0, 0) for ms in instants)

    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.add("V", Enqueue([(seq, "r") for seq in (old, just, young)]), wall_clock_ms())
        await batch.run()
        await queues.redis.zadd(keys.parked("V"), {str(parked): parked})

        await counted(queues, "one")

        await queues.join_outcomes()
        outcomes = await queues.read_outcomes("r", count=10, block_ms=1)
        ended = [OutcomeRecord.from_wire(wire) for _, wire in outcomes]
        assert {(record.seq, record.outcome) for record in ended} == {(old, Outcome.EXPIRED), (parked, Outcome.EXPIRED)}
        assert await queues.redis.zrange(keys.pending("V"), 0, -1) == [str(just).encode(), str(young).encode()]
        assert not await queues.redis.exists(keys.parked("V"))

    with_queues(redis_server, body)


def test_an_expired_compacted_message_is_recorded_and_removed_from_redis(redis_server: Server) -> None:
    """For a client that never connects; a younger message stays pending."""
    old, young = (seq_of(wall_clock_ms() - days * 86_400_000, 0, 0) for days in (40, 20))

    async def body(queues: Queues) -> None:
        batch = queues.batch()
        for seq, key in ((old, "a"), (young, "b")):
            batch.add(ecq_queue("V"), Append(seq, key, b"x"), wall_clock_ms())
        await batch.run()

        await counted(queues, "one")

        await queues.join_outcomes()
        outcomes = await queues.read_outcomes("r", count=10, block_ms=1)
        records = [EcqAck.from_wire(wire) for _, wire in outcomes]
        assert [(record.seq, record.outcome, record.passed_over) for record in records] == [(old, Outcome.EXPIRED, True)]
        pending, _, _, live, delivered, messages, *_ = keys.ecq_keys("V")
        assert await queues.redis.zrange(pending, 0, -1) == [str(young).encode()]
        assert await queues.redis.hgetall(live) == {b"b": str(young).encode()}
        assert await queues.redis.hkeys(messages) == [str(young).encode()]
        assert not await queues.redis.exists(delivered)

    with_queues(redis_server, body)


@pytest.mark.parametrize("spoilt", [keys.pending, keys.attempts, keys.done])
def test_a_vehicle_with_corrupt_keys_stops_no_other_from_expiring(redis_server: Server, spoilt: Callable[[str], str]) -> None:
    """Vehicles that the walk cannot count, cannot check for expiry, and cannot end."""
    old = seq_of(wall_clock_ms() - POLICY.retention_ms - MAX_SKEW_MS - 9, 0, 0)

    async def body(queues: Queues) -> None:
        batch = queues.batch()
        for owner in ("BAD", "V"):
            batch.add(owner, Enqueue([(old, "r")]), wall_clock_ms())
        await batch.run()
        await queues.redis.set(spoilt("BAD"), "what is this")

        with capture_logs() as logs:
            await counted(queues, "one")

        await queues.join_outcomes()
        outcomes = await queues.read_outcomes("r", count=10, block_ms=1)
        assert [OutcomeRecord.from_wire(wire).vin for _, wire in outcomes] == ["V"]
        assert "BAD" in str([line for line in logs if "corrupt" in line["event"]])

    with_queues(redis_server, body)


def test_only_one_of_many_collectors_counts(redis_server: Server) -> None:
    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.add("V", Enqueue([(seq_of(wall_clock_ms(), 0, 0), "r")]), wall_clock_ms())
        await batch.run()

        stats = await counted(queues, "one", "two", "three")

        assert (stats.queues, stats.pending) == (1, 1)
        assert await queues.redis.get(keys.QUEUE_STATS_LEASE) in (b"one", b"two", b"three")

    with_queues(redis_server, body)
