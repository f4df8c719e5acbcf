"""Thousands of interleavings of replicas, vehicles and faults around the real `step` and the real queues."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.dispatcher.world import World
from tests.servers import Server, start_redis, stopping

SEEDS = range(40)


@pytest.fixture(scope="module")
def sim_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("simulation")
    with stopping(start_redis(folder)) as server:
        yield server


def simulate(port: int, seed: int, *, calm: bool) -> World:
    async def played() -> World:
        async with Redis(port=port) as redis:
            world = World(seed, redis, calm=calm)
            await world.run(600)
            await world.calm_down()
            return world

    return asyncio.run(played())


def in_order_and_complete(world: World) -> None:
    """Nothing lost, first copies in seq order, every end recorded, and nothing recorded that the vehicle did not acknowledge."""
    for vehicle in world.vehicles:
        queued = world.queued[vehicle.vin]
        assert list(dict.fromkeys(seq for seq, _, _ in vehicle.got)) == queued
        assert {seq for vin, seq in world.outcomes if vin == vehicle.vin} == set(queued)
        assert vehicle.acked == set(queued)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_dies_nothing_is_lost_and_order_holds(sim_redis: Server, seed: int) -> None:
    in_order_and_complete(simulate(sim_redis.port, seed, calm=False))


@pytest.mark.parametrize("seed", SEEDS)
def test_while_nothing_dies_no_session_gets_anything_twice(sim_redis: Server, seed: int) -> None:
    world = simulate(sim_redis.port, seed, calm=True)
    in_order_and_complete(world)
    for vehicle in world.vehicles:
        published = [(seq, session) for seq, dup, session in vehicle.in_time or vehicle.got if not dup]
        assert len(published) == len(set(published))
