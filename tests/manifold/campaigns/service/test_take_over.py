"""Campaigners that die, stand still, or are two: no vehicle is left out, and none gets a second copy."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.seq import wall_clock_ms
from manifold.queues import Loader, Policy
from manifold.sandbox.fleet import Fleet, vins
from tests.faults.clocked_recorder import Clock
from tests.manifold.campaigns.service.worlds import World, a_world, copies, health, plan_for, propose
from tests.manifold.recorder.harness import RECORDER
from tests.support.servers import Server, start_service, wait_until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One platform for all tests."""
    with a_world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    """The platform for one test, which starts campaigners of its own and has campaigns of its own name."""
    made = shared.another()
    try:
        yield made
    finally:
        made.another()


@pytest.fixture
def name() -> str:
    """The name of the test's campaign."""
    return f"spring-{uuid.uuid4().hex[:8]}"


def epochs(campaign: Campaign) -> list[int]:
    """The epochs of the campaigners' orders, in the order of the record."""
    return [each.epoch for _, each in sorted(campaign.orders.items()) if each.by.startswith(r.CAMPAIGNER)]


@contextmanager
def recorded_by(world: World, module: str, argument: str) -> Iterator[None]:
    """Run another kind of recorder in place of the platform's."""
    platform, port = world.platform, world.settings.recorder_port
    assert platform.recorder is not None
    platform.recorder.stop()
    platform.recorder = start_service(
        module,
        argument,
        imports=RECORDER,
        port=port,
        log=world.settings.home / "logs" / f"{module}.log",
        env=platform.env_of("recorder"),
        ready=lambda: bool(health(port).get("healthy")),
    )
    try:
        yield
    finally:
        platform.recorder.stop()
        platform.start_recorder()


def test_another_campaigner_goes_on_after_a_kill_and_sends_nothing_twice(world: World, name: str) -> None:
    targets = vins(8, seed=21)
    first = world.start_campaigner("a")
    second = world.start_campaigner("b", active=False)
    assert health(second.port)["healthy"]
    assert not health(second.port)["active"]

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await fleet.connect(targets[:4])
            await propose(world.settings, plan_for(name, list(targets)))
            await fleet.wait_for(lambda fleet: copies(fleet, name).total() == 4, 30)
            first.kill()
            await fleet.connect(targets[4:])
            await asyncio.to_thread(world.wait_for, name, Stage.COMPLETED)
        return fleet

    fleet = asyncio.run(play())
    campaign = world.campaign(name)
    assert copies(fleet, name) == dict.fromkeys(targets, 1)
    assert campaign.total(Status.DELIVERED) == 8
    assert epochs(campaign) == sorted(epochs(campaign))
    assert len(set(epochs(campaign))) == 2


def test_a_campaigner_that_stood_still_decides_nothing_any_more(world: World, name: str) -> None:
    targets = vins(6, seed=23)
    first = world.start_campaigner("a")
    world.start_campaigner("b", active=False)

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await fleet.connect(targets[:3])
            await propose(world.settings, plan_for(name, list(targets)))
            await fleet.wait_for(lambda fleet: copies(fleet, name).total() == 3, 30)
            with first.standing_still():
                await asyncio.to_thread(wait_until, lambda: health(world.campaigners["b"].port).get("active"))
            await fleet.connect(targets[3:])  # both see them
            await asyncio.to_thread(world.wait_for, name, Stage.COMPLETED)
            await asyncio.to_thread(wait_until, lambda: health(first.port).get("active") is False)
        return fleet

    fleet = asyncio.run(play())
    campaign = world.campaign(name)
    assert health(world.campaigners["b"].port)["active"]
    assert copies(fleet, name) == dict.fromkeys(targets, 1)
    assert epochs(campaign) == sorted(epochs(campaign))


def test_a_release_under_way_when_its_campaigner_dies_is_not_repeated(world: World, name: str) -> None:
    here, comes = vins(2, seed=31)
    first = world.start_campaigner("a")

    async def play() -> Fleet:
        async with Fleet(world.settings, [here, comes]) as fleet:
            await fleet.connect([here])
            await propose(world.settings, plan_for(name, [here, comes]))
            await asyncio.to_thread(wait_until, lambda: world.campaign(name).total(Status.DELIVERED) == 1)
            published = len(first.log.read_text())
            with world.platform.tap.standing_still(), world.platform.blocking() as redis:
                redis.hset(keys.presence(comes), mapping={"connected": "yes", "since": wall_clock_ms()})
                await asyncio.to_thread(wait_until, lambda: "publishing campaign message" in first.log.read_text()[published:])
                first.kill()
            await asyncio.to_thread(world.start_campaigner, "b")
            await fleet.connect([comes])
            await asyncio.to_thread(world.wait_for, name, Stage.COMPLETED)
        return fleet

    fleet = asyncio.run(play())
    campaign = world.campaign(name)
    assert copies(fleet, name) == {here: 1, comes: 1}
    assert sorted(campaign.releases.values()) == [1, 1]


def test_a_wiped_redis_makes_no_vehicle_get_a_second_copy(world: World, name: str) -> None:
    targets = vins(8, seed=29)
    world.start_campaigner()

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await fleet.connect(targets[:4])
            await propose(world.settings, plan_for(name, list(targets)))
            await asyncio.to_thread(wait_until, lambda: world.campaign(name).total(Status.DELIVERED) == 4)
            with world.platform.blocking() as redis:
                redis.flushall()
                Loader(redis, Policy.of(world.settings)).mark_loaded(2)  # a rebuild: nothing was pending
            await fleet.heartbeat()
            await fleet.connect(targets[4:])
            await asyncio.to_thread(world.wait_for, name, Stage.COMPLETED)
        return fleet

    fleet = asyncio.run(play())
    campaign = world.campaign(name)
    assert copies(fleet, name) == dict.fromkeys(targets, 1)
    assert campaign.total(Status.DELIVERED) == 8


def test_a_campaigner_that_is_asked_to_end_hands_over_at_once(world: World) -> None:
    first = world.start_campaigner("a", campaigner_lease_seconds=600)
    second = world.start_campaigner("b", active=False)
    first.stop()
    assert first.process.poll() == 0
    wait_until(lambda: health(second.port).get("active"))


@pytest.mark.slow
def test_a_campaigner_goes_on_when_the_broker_answers_again(world: World) -> None:
    with world.platform.tap.standing_still():
        campaigner = world.start_campaigner(active=False)
        wait_until(lambda: "the broker does not answer" in str(health(campaigner.port).get("problems")))
    wait_until(lambda: health(campaigner.port).get("active") and health(campaigner.port)["healthy"])
    assert campaigner.process.poll() is None


def test_clocks_that_differ_too_much_let_campaigns_wait(world: World, name: str, tmp_path: Path) -> None:
    targets = vins(2, seed=33)
    campaigner, clock = world.start_campaigner(), Clock(tmp_path / "clock")
    clock.step(20)
    with recorded_by(world, "tests.faults.clocked_recorder", str(clock.file)):
        asyncio.run(propose(world.settings, plan_for(name, list(targets), away="queue")))
        wait_until(lambda: "ms apart; set them by NTP" in str(health(campaigner.port)["problems"]))
        assert not world.campaign(name).releases
        clock.step(0)
        wait_until(lambda: world.campaign(name).total(Status.RELEASED) == 2, what="both to be released")


@pytest.mark.slow
def test_what_a_dead_campaigner_had_published_is_on_record_before_another_decides(name: str, tmp_path: Path) -> None:
    here, comes, too = targets = vins(3, seed=35)
    held = tmp_path / "held"
    with a_world(tmp_path) as world, recorded_by(world, "tests.faults.held_recorder", str(held)):
        first = world.start_campaigner("a")

        def publishes(server: Server, before: int) -> bool:
            return "publishing campaign message" in server.log.read_text()[before:]

        async def play() -> Fleet:
            async with Fleet(world.settings, targets) as fleet:
                await fleet.connect([here])
                await propose(world.settings, plan_for(name, list(targets)))
                await asyncio.to_thread(wait_until, lambda: world.campaign(name).total(Status.DELIVERED) == 1)
                published = len(first.log.read_text())
                held.touch()
                with world.platform.blocking() as redis:
                    redis.hset(keys.presence(comes), mapping={"connected": "yes", "since": wall_clock_ms()})
                    await asyncio.to_thread(wait_until, lambda: publishes(first, published))
                    first.kill()
                    redis.hset(keys.presence(too), mapping={"connected": "yes", "since": wall_clock_ms()})
                second = await asyncio.to_thread(world.start_campaigner, "b")
                await asyncio.to_thread(wait_until, lambda: publishes(second, 0))
                held.unlink()
                await fleet.connect([comes, too])
                await asyncio.to_thread(world.wait_for, name, Stage.COMPLETED)
            return fleet

        fleet = asyncio.run(play())
        campaign = world.campaign(name)
    assert copies(fleet, name) == dict.fromkeys(targets, 1)
    assert sorted(campaign.releases.values()) == [1, 1, 1]
