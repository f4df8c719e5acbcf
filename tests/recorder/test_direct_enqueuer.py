"""The two ways of a trigger into the queues, with one result: a small one alone in one round trip, all others step by step."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from adapters.mqtt import Message
from contracts import keys
from contracts.errors import Retryable
from contracts.events import Connected
from contracts.names import Owner
from contracts.seq import wall_clock_ms
from contracts.settings import Settings
from contracts.topics import TRIGGER
from queues import Policy, Queues, connect, is_cluster
from queues.verbs.claims import UpdatePresence
from recorder._dedupe import DedupeWindow
from recorder._direct_enqueuer import OWNERS_ALONE, DirectEnqueuer
from recorder._lake import Lake
from recorder._parser import Incoming, Parser
from tests.servers import Server

WINDOW_MS = 900_000
Scenario = Callable[[DirectEnqueuer, Queues], Awaitable[None]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def take(settings: Settings, vins: list[str], request_id: str = "task_a_1", parser: Parser | None = None) -> Incoming:
    body = msgspec.json.encode({"ids": vins, "request_id": request_id, "data_id": "d1"})
    return (parser or Parser(settings, DedupeWindow(WINDOW_MS))).take(Message(TRIGGER, body))


def run(server: Server, settings: Settings, scenario: Scenario) -> None:
    async def main() -> None:
        async with connect(f"redis://127.0.0.1:{server.port}/0") as client:
            queues = Queues(client, Policy.of(settings))
            await queues.join_wakes()
            await scenario(DirectEnqueuer(queues, DedupeWindow(WINDOW_MS), Lake(settings)), queues)

    asyncio.run(main())


async def load(direct_enqueuer: DirectEnqueuer, queues: Queues) -> None:
    """The queues hold all that is pending, and the recorder has looked what they lack."""
    for mark in keys.loaded_marks(of_cluster=is_cluster(queues.redis)):
        await queues.redis.set(mark, 7)
    direct_enqueuer.loading = (await queues.marks(0)).loading


def vins(count: int) -> list[str]:
    return [f"V{number}" for number in range(count)]


@pytest.mark.parametrize("count", [1, OWNERS_ALONE, OWNERS_ALONE + 1])
def test_every_vehicle_that_is_here_is_woken_for_whichever_way_its_entry_takes(
    redis_server: Server, redis: Redis, settings: Settings, count: int
) -> None:
    async def scenario(direct_enqueuer: DirectEnqueuer, queues: Queues) -> None:
        await load(direct_enqueuer, queues)
        batch = queues.batch()
        for vin in vins(count):
            batch.add(vin, UpdatePresence(Connected(Owner(vin), wall_clock_ms(), True, 0), False), wall_clock_ms())
        await batch.run()
        incoming = take(settings, vins(count))
        await direct_enqueuer.offer([incoming])
        assert incoming.applied
        wakes = await queues.read_wakes("a", count=100, block_ms=1)
        assert sorted(owner for wake in wakes for owner in wake.owners) == sorted(vins(count))
        assert {wake.trigger for wake in wakes} == {(incoming.seq, "task_a_1", "d1")}
        assert await queues.triggers([incoming.seq]) == [("task_a_1", "d1")]
        assert [redis.zscore(keys.pending(vin), incoming.seq) is not None for vin in vins(count)] == [True] * count

    run(redis_server, settings, scenario)


def test_a_wake_up_for_two_triggers_names_none(redis_server: Server, redis: Redis, settings: Settings) -> None:
    async def scenario(direct_enqueuer: DirectEnqueuer, queues: Queues) -> None:
        await load(direct_enqueuer, queues)
        batch = queues.batch()
        batch.add("V0", UpdatePresence(Connected(Owner("V0"), wall_clock_ms(), True, 0), False), wall_clock_ms())
        await batch.run()
        parser = Parser(settings, DedupeWindow(WINDOW_MS))
        await direct_enqueuer.offer([take(settings, vins(1), request, parser) for request in ("task_a_1", "task_a_2")])
        (wake,) = await queues.read_wakes("a", count=100, block_ms=1)
        assert (wake.owners, wake.trigger) == (["V0"], None)

    run(redis_server, settings, scenario)


@pytest.mark.parametrize("count", [1, OWNERS_ALONE + 1])
def test_a_trigger_that_another_recorder_was_first_with_is_a_duplicate_on_both_ways(
    redis_server: Server, redis: Redis, settings: Settings, count: int
) -> None:
    async def scenario(direct_enqueuer: DirectEnqueuer, queues: Queues) -> None:
        await load(direct_enqueuer, queues)
        first, again = take(settings, vins(count)), take(settings, vins(count))
        assert again.digest is not None
        redis.set(keys.dedupe(again.digest), first.seq - 1)
        await direct_enqueuer.offer([again])
        assert (again.duplicate_of, again.applied) == (first.seq - 1, False)
        assert redis.keys("q:*") == []

    run(redis_server, settings, scenario)


@pytest.mark.parametrize("count", [1, OWNERS_ALONE + 1])
def test_nothing_goes_into_queues_that_are_not_loaded_on_either_way(
    redis_server: Server, redis: Redis, settings: Settings, count: int
) -> None:
    async def scenario(direct_enqueuer: DirectEnqueuer, queues: Queues) -> None:
        incoming = take(settings, vins(count))
        with pytest.raises(Retryable, match="manifold rebuild"):
            await direct_enqueuer.offer([incoming])
        assert redis.keys("q:*") == []
        await load(direct_enqueuer, queues)
        await direct_enqueuer.offer([incoming])  # its own registration is no obstacle
        assert (incoming.applied, incoming.duplicate_of) == (True, None)

    run(redis_server, settings, scenario)


@pytest.mark.parametrize("count", [2, OWNERS_ALONE + 1])
@pytest.mark.parametrize("place", range(7), ids=lambda place: keys.owner_keys("V")[place].rpartition(":")[2])
def test_an_owner_whose_keys_are_spoilt_is_named_and_holds_up_nobody(
    redis_server: Server, redis: Redis, settings: Settings, count: int, place: int
) -> None:
    key = keys.owner_keys("V0")[place]

    async def scenario(direct_enqueuer: DirectEnqueuer, queues: Queues) -> None:
        await load(direct_enqueuer, queues)
        redis.set(key, "something else")
        redis.set(keys.data("d1"), "payload")
        redis.sadd(keys.waiting_for("d1"), "V0", "V1")  # its data comes: what is parked is looked at
        await queues.unpark_waiting("d1", wall_clock_ms())
        incoming = take(settings, vins(count))
        await direct_enqueuer.offer([incoming])
        assert incoming.applied
        assert [redis.zscore(keys.pending(vin), incoming.seq) is not None for vin in vins(count)[1:]] == [True] * (count - 1)
        if not direct_enqueuer.spoilt.problems:  # one that queueing does not look at
            assert redis.zscore(keys.pending("V0"), incoming.seq) is not None
            return
        (problem,) = direct_enqueuer.spoilt.problems
        assert problem.startswith(f"V0: {key} is a string")
        redis.delete(key)
        await direct_enqueuer.spoilt.look_again()
        assert direct_enqueuer.spoilt.problems == []

    run(redis_server, settings, scenario)


def test_what_is_shared_and_spoilt_holds_up_nobody_either(redis_server: Server, redis: Redis, settings: Settings) -> None:
    async def scenario(direct_enqueuer: DirectEnqueuer, queues: Queues) -> None:
        await load(direct_enqueuer, queues)
        incoming = take(settings, ["V1"])
        for key in (keys.trigger(incoming.seq), keys.dedupe(str(incoming.digest)), keys.data("d1")):
            redis.rpush(key, "something else")
        await direct_enqueuer.offer([incoming])
        assert redis.zscore(keys.pending("V1"), incoming.seq) is not None

    run(redis_server, settings, scenario)
