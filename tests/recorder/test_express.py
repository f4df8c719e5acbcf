"""The two ways of a trigger into the queues, with one result: a small one alone in one round trip, all others step by step."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis

from adapters.mqtt import Message
from contracts import keys
from contracts.errors import Retryable
from contracts.seq import wall_clock_ms
from contracts.settings import Settings
from contracts.topics import TRIGGER
from queues import Policy, Queues, connect
from recorder._dedupe import DedupeWindow
from recorder._express import OWNERS_ALONE, Express
from recorder._intake import Incoming, Intake
from recorder._lake import Lake
from tests.servers import Server

WINDOW_MS = 900_000
Scenario = Callable[[Express, Queues], Awaitable[None]]


@pytest.fixture
def redis(redis_server: Server) -> Any:
    with Redis(port=redis_server.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def take(settings: Settings, vins: list[str], request_id: str = "task_a_1") -> Incoming:
    body = msgspec.json.encode({"ids": vins, "request_id": request_id, "data_id": "d1"})
    return Intake(settings, DedupeWindow(WINDOW_MS)).take(Message(TRIGGER, body))


def run(server: Server, settings: Settings, scenario: Scenario) -> None:
    async def main() -> None:
        async with connect(f"redis://127.0.0.1:{server.port}/0") as client:
            queues = Queues(client, Policy.of(settings))
            await queues.join_wakes()
            await scenario(Express(queues, DedupeWindow(WINDOW_MS), Lake(settings)), queues)

    asyncio.run(main())


def vins(count: int) -> list[str]:
    return [f"V{number}" for number in range(count)]


@pytest.mark.parametrize("count", [1, OWNERS_ALONE, OWNERS_ALONE + 1])
def test_every_vehicle_that_is_here_is_woken_for_whichever_way_its_entry_takes(
    redis_server: Server, redis: Redis, settings: Settings, count: int
) -> None:
    async def scenario(express: Express, queues: Queues) -> None:
        await queues.mark_loaded(wall_clock_ms())
        batch = queues.batch()
        for vin in vins(count):
            batch.connected(vin, wall_clock_ms(), True, 0, wall_clock_ms())
        await batch.run()
        incoming = take(settings, vins(count))
        await express.offer([incoming])
        assert incoming.applied
        wakes = await queues.read_wakes("a", count=100, block_ms=1)
        assert sorted(owner for wake in wakes for owner in wake.owners) == sorted(vins(count))
        named = (incoming.seq, "task_a_1", "d1") if count <= OWNERS_ALONE else None
        assert {wake.trigger for wake in wakes} == {named}
        assert await queues.triggers([incoming.seq]) == [("task_a_1", "d1")]
        assert [redis.zscore(keys.pending(vin), incoming.seq) is not None for vin in vins(count)] == [True] * count

    run(redis_server, settings, scenario)


@pytest.mark.parametrize("count", [1, OWNERS_ALONE + 1])
def test_a_trigger_that_another_recorder_was_first_with_is_a_duplicate_on_both_ways(
    redis_server: Server, redis: Redis, settings: Settings, count: int
) -> None:
    async def scenario(express: Express, queues: Queues) -> None:
        await queues.mark_loaded(wall_clock_ms())
        first, again = take(settings, vins(count)), take(settings, vins(count))
        assert again.digest is not None
        redis.set(keys.dedupe(again.digest), first.seq - 1)
        await express.offer([again])
        assert (again.duplicate_of, again.applied) == (first.seq - 1, False)
        assert redis.keys("q:*") == []

    run(redis_server, settings, scenario)


@pytest.mark.parametrize("count", [1, OWNERS_ALONE + 1])
def test_nothing_goes_into_queues_that_are_not_loaded_on_either_way(
    redis_server: Server, redis: Redis, settings: Settings, count: int
) -> None:
    async def scenario(express: Express, queues: Queues) -> None:
        incoming = take(settings, vins(count))
        with pytest.raises(Retryable, match="manifold rebuild"):
            await express.offer([incoming])
        assert redis.keys("q:*") == []
        await queues.mark_loaded(wall_clock_ms())
        await express.offer([incoming])  # its own registration is no obstacle
        assert (incoming.applied, incoming.duplicate_of) == (True, None)

    run(redis_server, settings, scenario)
