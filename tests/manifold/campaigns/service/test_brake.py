"""The brake on real parts: a pause that holds, a resume that sends to each vehicle once, and a cancel."""

import asyncio
from collections.abc import Iterator

import pytest

from manifold.campaigns.decided import Stage
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.brakes import OFF, Brake
from manifold.contracts.outcomes import Outcome
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet, vins
from tests.manifold.campaigns.service.worlds import World, a_world, copies, order, plan_for, propose
from tests.support.servers import wait_until


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(tmp_path_factory.mktemp("world")) as made:
        made.start_campaigner()
        yield made


def brake_of(world: World, name: str) -> Brake | None:
    with world.platform.blocking() as redis:
        value = redis.hget(keys.BRAKES, name)
    return None if value is None else Brake.from_wire(value)


def test_a_pause_holds_without_the_campaigner_and_a_resume_sends_to_each_once(world: World) -> None:
    """Half of the vehicles have it, the others are away when it is paused, and come meanwhile. Neither API nor Airflow runs.

    `tests/dispatcher/test_brake_at_size.py` pauses among a million released entries.
    """
    targets = vins(200, seed=3)
    here, away = targets[:100], targets[100:]

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await fleet.connect(here)
            await propose(world.settings, plan_for("held", list(targets), away="queue"))
            await fleet.wait_for(lambda fleet: copies(fleet, "held") == dict.fromkeys(here, 1), 30)
            world.campaigners["a"].kill()

            receipt = await order(world.settings, r.Pause("held", "ann", why="a complaint"))
            assert (receipt.status, receipt.reason) == ("recorded", None)
            await fleet.connect(away)
            async with Publisher(world.settings) as platform:
                await platform.trigger(list(away), "other", "data-held")
            await fleet.wait_for(lambda fleet: copies(fleet, "other") == dict.fromkeys(away, 1), 30)
            assert copies(fleet, "held") == dict.fromkeys(here, 1)

            await order(world.settings, r.Resume("held", "ann"))
            assert brake_of(world, "held") == Brake(receipt.seq, "pause")
            await asyncio.to_thread(world.start_campaigner, "b")
            await fleet.wait_for(lambda fleet: copies(fleet, "held") == dict.fromkeys(targets, 1), 60)
            await asyncio.to_thread(world.wait_for, "held", Stage.COMPLETED)
            assert brake_of(world, "held") is not None
        return fleet

    assert set(copies(asyncio.run(play()), "held").values()) == {1}
    assert world.campaign("held").total(Status.DELIVERED) == 200
    withdrawn = {record.vin for record in world.platform.outcomes() if record.outcome is Outcome.WITHDRAWN}
    assert withdrawn == set(away)


def test_what_waits_settles_as_cancelled_and_is_never_sent(world: World) -> None:
    targets = vins(6, seed=5)

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await propose(world.settings, plan_for("dropped", list(targets), away="queue"))
            wait = asyncio.to_thread(
                wait_until, lambda: world.campaign("dropped").total(Status.RELEASED) == 6, what="all to be released"
            )
            await wait
            await order(world.settings, r.Cancel("dropped", "ann"))
            await fleet.connect()
            done = asyncio.to_thread(
                wait_until, lambda: world.campaign("dropped").total(Status.WAITING) == 6, what="all to be withdrawn"
            )
            await done
        return fleet

    assert not copies(asyncio.run(play()), "dropped")
    campaign = world.campaign("dropped")
    assert {campaign.status_of(vin) for vin in targets} == {Status.CANCELLED}


def test_a_pause_without_effect_does_not_stop_the_campaign(world: World) -> None:
    """It was given for a version that is over; the door cannot know that, and the campaigner takes the brake off."""
    targets = vins(4, seed=7)

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await propose(world.settings, plan_for("stale", list(targets)))
            await asyncio.to_thread(world.wait_for, "stale", Stage.RUNNING)
            receipt = await order(world.settings, r.Pause("stale", "ann", if_version=1))
            released = asyncio.to_thread(
                wait_until, lambda: brake_of(world, "stale") == Brake(receipt.seq, OFF), what="the brake to be taken off"
            )
            await released
            await fleet.connect()
            await fleet.wait_for(lambda fleet: copies(fleet, "stale") == dict.fromkeys(targets, 1), 30)
        return fleet

    asyncio.run(play())
