"""Both enqueue paths of a trigger give the same result: a small one in one round trip, all others step by step."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.errors import Retryable
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.seq import wall_clock_ms
from manifold.contracts.topics import TRIGGER
from manifold.messaging.mqtt import Message
from manifold.queues import Queues, is_cluster
from manifold.queues.verbs.claims import UpdatePresence
from manifold.recorder._dedupe import DedupeWindow
from manifold.recorder._direct_enqueuer import MAX_OWNERS_SINGLE, DirectEnqueuer
from manifold.recorder._parser import Incoming, Parser
from manifold.settings import Settings
from tests.manifold.recorder.enqueuing import WINDOW_MS, is_named_until_mended, load, run
from tests.support.wire import trigger


@pytest.fixture
def play(url: str, redis: Redis, tmp_path: Path) -> Callable[..., None]:
    """Run a scenario over empty queues."""
    return partial(run, url, Settings(home=tmp_path))


def take(vins: list[str], request_id: str = "task_a_1", parser: Parser | None = None) -> Incoming:
    """Parse a trigger for these vehicles, which another recorder may have received too."""
    parser = parser or Parser(Settings(), DedupeWindow(WINDOW_MS))
    return parser.build(Message(TRIGGER, trigger(vins, request_id, "d1")))


def vins(count: int) -> list[str]:
    return [f"V{number}" for number in range(count)]


@pytest.mark.parametrize("count", [1, MAX_OWNERS_SINGLE, MAX_OWNERS_SINGLE + 1])
def test_both_enqueue_paths_wake_every_connected_vehicle(play: Callable[..., None], redis: Redis, count: int) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        batch = queues.batch()
        for vin in vins(count):
            batch.add(vin, UpdatePresence(Connected(Owner(vin), wall_clock_ms(), True, 0), False), wall_clock_ms())
        await batch.run()
        incoming = take(vins(count))
        await enqueuer.offer([incoming])
        assert incoming.applied
        wakes = await queues.read_wakes("a", count=100, block_ms=1)
        assert sorted(owner for wake in wakes for owner in wake.owners) == sorted(vins(count))
        assert {wake.trigger for wake in wakes} == {(incoming.seq, "task_a_1", "d1")}
        assert await queues.triggers([incoming.seq]) == [EntryTrigger("task_a_1", "d1")]
        assert [redis.zscore(keys.pending(vin), incoming.seq) is not None for vin in vins(count)] == [True] * count

    play(scenario)


def test_a_wake_up_for_two_triggers_names_none(play: Callable[..., None]) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        batch = queues.batch()
        batch.add("V0", UpdatePresence(Connected(Owner("V0"), wall_clock_ms(), True, 0), False), wall_clock_ms())
        await batch.run()
        parser = Parser(Settings(), DedupeWindow(WINDOW_MS))
        await enqueuer.offer([take(vins(1), request, parser) for request in ("task_a_1", "task_a_2")])
        (wake,) = await queues.read_wakes("a", count=100, block_ms=1)
        assert (wake.owners, wake.trigger) == (["V0"], None)

    play(scenario)


@pytest.mark.parametrize("count", [1, MAX_OWNERS_SINGLE + 1])
def test_a_trigger_of_another_recorder_is_a_duplicate_on_both_paths(play: Callable[..., None], redis: Redis, count: int) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        first, again = take(vins(count)), take(vins(count))
        assert again.digest is not None
        redis.set(keys.dedupe(again.digest), first.seq - 1)
        await enqueuer.offer([again])
        assert (again.duplicate_of, again.applied) == (first.seq - 1, False)
        assert redis.keys("q:*") == []

    play(scenario)


@pytest.mark.parametrize("count", [1, MAX_OWNERS_SINGLE + 1])
def test_both_paths_refuse_queues_that_were_loaded_again(play: Callable[..., None], redis: Redis, count: int) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        await load(enqueuer, queues)
        for mark in keys.loaded_marks(of_cluster=is_cluster(redis)):
            redis.set(mark, "another time")
        with pytest.raises(Retryable, match="the queues were loaded again meanwhile"):
            await enqueuer.offer([take(vins(count))])

    play(scenario)


@pytest.mark.parametrize("count", [1, MAX_OWNERS_SINGLE + 1])
def test_both_paths_refuse_queues_that_are_not_loaded(play: Callable[..., None], redis: Redis, count: int) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        incoming = take(vins(count))
        with pytest.raises(Retryable, match="manifold rebuild"):
            await enqueuer.offer([incoming])
        assert redis.keys("q:*") == []
        await load(enqueuer, queues)
        await enqueuer.offer([incoming])  # its own registration is ignored
        assert (incoming.applied, incoming.duplicate_of) == (True, None)

    play(scenario, loaded=False)


@pytest.mark.parametrize("count", [2, MAX_OWNERS_SINGLE + 1])
@pytest.mark.parametrize("place", range(7), ids=lambda place: keys.owner_keys("V")[place].rpartition(":")[2])
def test_an_owner_with_corrupt_keys_is_named_and_blocks_no_other(
    play: Callable[..., None], redis: Redis, count: int, place: int
) -> None:
    key = keys.owner_keys("V0")[place]

    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        redis.set(key, "something else")
        redis.set(keys.data("d1"), "payload")
        redis.sadd(keys.waiting_for("d1"), "V0", "V1")  # its data arrives: parked entries are checked
        await queues.unpark_waiting("d1", wall_clock_ms())
        incoming = take(vins(count))
        await enqueuer.offer([incoming])
        assert incoming.applied
        assert [redis.zscore(keys.pending(vin), incoming.seq) is not None for vin in vins(count)[1:]] == [True] * (count - 1)
        if not await is_named_until_mended(enqueuer, queues, "V0", key):
            assert redis.zscore(keys.pending("V0"), incoming.seq) is not None

    play(scenario)


def test_a_corrupt_shared_key_blocks_no_owner(play: Callable[..., None], redis: Redis) -> None:
    async def scenario(enqueuer: DirectEnqueuer, queues: Queues) -> None:
        incoming = take(["V1"])
        for key in (keys.trigger(incoming.seq), keys.dedupe(str(incoming.digest)), keys.data("d1")):
            redis.rpush(key, "something else")
        await enqueuer.offer([incoming])
        assert redis.zscore(keys.pending("V1"), incoming.seq) is not None

    play(scenario)
