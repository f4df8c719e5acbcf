"""Every part of a platform is killed again and again during a campaign: no vehicle is left out, and none gets a second entry."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from manifold.campaigns.decided import Stage
from manifold.campaigns.record import read_facts
from manifold.campaigns.standing import Status
from manifold.campaigns.verification import verify
from manifold.sandbox.fleet import Fleet, vins
from tests.manifold.campaigns.service.worlds import World, a_world, copies, plan_for, propose
from tests.support.servers import start_redis

TIMES, WAVES = 10, 40


def kills(world: World) -> dict[str, Callable[[], object]]:
    """For each part, what kills it (`kill -9`) and starts it again."""
    platform = world.platform

    def campaigner() -> None:
        world.campaigners["a"].kill()
        world.start_campaigner(active=False)

    def recorder() -> None:
        assert platform.recorder is not None
        platform.recorder.kill()
        platform.start_recorder()

    def dispatcher() -> None:
        platform.dispatchers[0].kill()
        platform.start_dispatcher()

    def redis() -> None:
        platform.redis.kill()
        platform.redis = start_redis(platform.home / "redis", port=platform.settings.redis_port, append_only=True)

    return {
        "campaigner": campaigner,
        "recorder": recorder,
        "dispatcher": dispatcher,
        "redis": redis,
        "broker": platform.restart_broker,
    }


@pytest.mark.slow
def test_ten_kills_of_each_part_leave_no_vehicle_out_and_repeat_no_entry(tmp_path: Path) -> None:
    """In an order that a seed draws, each at whatever instant of the campaign it comes to."""
    targets = vins(2 * WAVES, seed=35)
    waves = [{"name": f"w{place}", "size": 2} for place in range(WAVES - 1)] + [{"name": "last", "size": "rest"}]
    with a_world(tmp_path, ack_deadline_seconds=3) as world:
        world.start_campaigner()
        work = kills(world)
        harm = [kind for kind in work for _ in range(TIMES)]
        Random(35).shuffle(harm)

        async def play() -> Fleet:
            async with Fleet(world.settings, targets) as fleet:
                await fleet.connect()
                await propose(world.settings, plan_for("spring", list(targets), waves=waves))
                await fleet.wait_for(lambda fleet: copies(fleet, "spring"), 60)
                for kind in harm:
                    await asyncio.to_thread(work[kind])
                under_way = world.campaign("spring").decided.stage
                await asyncio.to_thread(world.wait_for, "spring", Stage.COMPLETED, within_s=180)
            assert under_way is not Stage.COMPLETED, "the campaign was over before the last kill"
            return fleet

        fleet = asyncio.run(play())
        campaign, facts = world.campaign("spring"), read_facts(world.settings, "spring")
    assert copies(fleet, "spring").keys() == set(targets)
    assert campaign.total(Status.DELIVERED) == len(targets)
    assert sum(campaign.releases.values()) == len(targets), "what came twice came as the same entry"
    for vin in targets:
        assert len({message.seq for message in fleet.received if message.vin == vin}) == 1
    assert verify(facts) == ()
