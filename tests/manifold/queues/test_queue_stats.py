"""The queue statistics: totals over all queues, and expired entries."""

import asyncio
from typing import Any

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.events import Connected, Disconnected, PresenceSign, Subscribed
from manifold.contracts.names import Owner
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import EPOCH_MS, seq_of, wall_clock_ms
from manifold.queues import BlockingBatch, Loader, Queues, QueueStats, connect, walk
from manifold.queues.verbs.claims import Park, UpdatePresence
from manifold.queues.verbs.ecq import Acknowledge, Append, Subscription
from manifold.queues.verbs.ends import Ack
from tests.manifold.queues.conftest import POLICY

NOW = EPOCH_MS + 200_000_000_000
OLD = seq_of(NOW - POLICY.retention_ms - 1, 0, 0)


def seq(n: int) -> int:
    return seq_of(NOW - 1000 + n, 0, 0)


def take(url: str, *, keys_a_slice: int = 3) -> tuple[QueueStats, set[str]]:
    """Collect statistics, and the owners with expired entries."""

    async def main() -> tuple[QueueStats, set[str]]:
        redis = connect(url)
        stats, expired = QueueStats(NOW), set[str]()
        async for owners in walk(redis, POLICY, stats, keys_a_slice=keys_a_slice):
            expired |= set(owners)
        await stats.save(redis, POLICY)
        assert await QueueStats.load(redis) == stats
        await redis.aclose()
        return stats, expired

    return asyncio.run(main())


def test_an_empty_redis_has_nothing_to_count(redis: Redis, url: str) -> None:
    stats, expired = take(url)

    assert (stats.keys, stats.pending, stats.longest, stats.oldest, expired) == (0, 0, [], [], set())


def test_every_queue_is_counted_and_the_longest_and_oldest_are_named(redis: Redis, url: str) -> None:
    Loader(redis, POLICY).enqueue([(f"}}V:{{{n}}}", [(seq(n + m), "r") for m in range(n)]) for n in range(1, 31)], NOW)

    stats, _ = take(url)

    assert (stats.queues, stats.pending) == (30, sum(range(1, 31)))
    assert stats.longest == [(f"}}V:{{{n}}}", n) for n in range(30, 10, -1)]
    assert stats.oldest == [(f"}}V:{{{n}}}", seq(n)) for n in range(1, 21)]


def test_entries_are_counted_by_state_and_vehicles_by_presence(redis: Redis, url: str) -> None:
    Loader(redis, POLICY).enqueue([(v, [(seq(1), "r"), (seq(2), "r")]) for v in ("here", "heard", "deaf", "gone", "silent")], NOW)

    async def body(queues: Queues) -> None:
        batch = queues.batch()
        batch.add("here", UpdatePresence(Connected(Owner("here"), NOW, True, 0), True), NOW)
        batch.add("deaf", UpdatePresence(Connected(Owner("deaf"), NOW, True, 0), False), NOW)
        batch.add("deaf", UpdatePresence(Subscribed(Owner("deaf"), NOW, "", False), False), NOW)
        batch.add("heard", UpdatePresence(PresenceSign(), True), NOW)
        batch.add("heard", Park(seq(1), "d"), NOW)
        batch.add("gone", UpdatePresence(Disconnected(Owner("gone"), NOW, NOW, 0, ""), False), NOW)
        batch.add("gone", Ack(OutcomeRecord("gone", seq(1), Outcome.DELIVERED, NOW), claim=False), NOW)
        await batch.run()

    async def main() -> None:
        redis = connect(url)
        await body(Queues(redis, POLICY))
        await redis.aclose()

    asyncio.run(main())
    stats, _ = take(url)

    assert (stats.known, stats.present, stats.unsubscribed) == (4, 2, 1)
    assert (stats.in_flight, stats.parked, stats.remembered) == (2, 1, 1)
    assert stats.pending == 10 - 2 - 1 - 1, "entries in flight, parked or ended are not pending"


def test_compacted_queues_are_counted_separately(redis: Redis, url: str) -> None:
    Loader(redis, POLICY).enqueue([("}C}:{ecq}", [(seq(1), "r")])], NOW)
    batch = BlockingBatch(redis, POLICY)
    # Owners that look like the end of a queue's key: their braces and "ecq" must not be taken for those of the key.
    for n in range(1, 31):
        owner = f"}}C}}:{{ecq}}{n}"
        for m in range(n):
            batch.add(ecq_queue(owner), Append(seq(n + m), f"k{m}", b""), NOW)
    for owner in ("here", "done"):
        batch.add(ecq_queue(owner), Append(seq(100), "a", b""), NOW)
        batch.add(owner, UpdatePresence(Connected(Owner(owner), NOW, True, 0), True), NOW)
        batch.add(ecq_queue(owner), Subscription(1, claim=True), NOW)
    batch.add(ecq_queue("done"), Acknowledge(EcqAck("done", seq(100), NOW)), NOW)
    batch.run()

    stats, expired = take(url)

    assert (stats.queues, stats.pending, stats.in_flight, expired) == (1, 1, 0, set())
    assert (stats.ecq_queues, stats.ecq_pending, stats.ecq_live) == (31, sum(range(1, 31)), sum(range(1, 31)) + 2)
    assert stats.ecq_in_flight == 1
    assert stats.ecq_longest == [(f"}}C}}:{{ecq}}{n}", n) for n in range(30, 10, -1)]
    assert stats.ecq_oldest == [(f"}}C}}:{{ecq}}{n}", seq(n)) for n in range(1, 21)]


@pytest.mark.parametrize("queue", [keys.pending, keys.parked])
def test_an_owner_with_an_expired_entry_is_named(redis: Redis, url: str, queue: Any) -> None:
    redis.zadd(queue("late"), {str(OLD): OLD, str(seq(1)): seq(1)})
    redis.zadd(queue("in time"), {str(seq(1)): seq(1)})

    _, expired = take(url)

    assert expired == {"late"}


def test_a_key_of_another_type_is_named_and_others_are_counted(redis: Redis, url: str) -> None:
    pending, _, _, live, *_ = keys.ecq_keys("BAD")
    spoilt = sorted([*(kind("BAD") for kind in (keys.pending, keys.parked, keys.done, keys.presence)), pending, live])
    for key in spoilt:
        redis.set(key, "what is this")
    redis.zadd(keys.pending("late"), {str(OLD): OLD, str(seq(1)): seq(1)})

    stats, expired = take(url)

    assert (expired, stats.pending) == ({"late"}, 2)
    assert sorted(stats.spoilt) == spoilt


@pytest.mark.parametrize("member", ["what is this", "1e5", "-7", "12.5"])
def test_a_key_with_an_invalid_seq_is_named_and_others_are_counted(redis: Redis, url: str, member: str) -> None:
    spoilt = sorted([keys.pending("BAD"), keys.parked("BAD"), keys.presence("WORSE"), keys.ecq_keys("BAD")[0]])
    redis.zadd(keys.ecq_keys("BAD")[0], {member: 0})
    redis.zadd(keys.pending("BAD"), {member: 0, str(seq(1)): seq(1)})
    redis.zadd(keys.parked("BAD"), {member: 0})
    redis.hset(keys.presence("WORSE"), mapping={"connected": "heard", "heard": "what is this"})
    redis.zadd(keys.pending("late"), {str(OLD): OLD, str(seq(1)): seq(1)})

    stats, expired = take(url)

    assert (expired, stats.pending, stats.oldest) == ({"late"}, 2, [("late", OLD)])
    assert sorted(stats.spoilt) == spoilt


@pytest.mark.parametrize(
    ("kept", "saved", "read"),
    [
        pytest.param(NOW, NOW + 1, NOW + 1, id="newer"),
        pytest.param(NOW + 1, NOW, NOW + 1, id="older: of a slower walk that began before"),
        pytest.param(wall_clock_ms() + 3_600_000, NOW, NOW, id="kept by a clock that is an hour ahead"),
    ],
)
def test_statistics_replace_those_that_began_earlier(redis: Redis, url: str, kept: int, saved: int, read: int) -> None:
    async def main() -> QueueStats | None:
        async with connect(url) as redis:
            for at_ms in (kept, saved):
                await QueueStats(at_ms, pending=at_ms).save(redis, POLICY)
            return await QueueStats.load(redis)

    stats = asyncio.run(main())

    assert stats is not None
    assert (stats.at_ms, stats.pending) == (read, read)
