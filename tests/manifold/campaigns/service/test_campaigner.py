"""A campaign on real parts: from the order to the last acknowledgement."""

import asyncio
from pathlib import Path

from manifold.campaigns.decided import Stage
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.sandbox.fleet import Fleet, vins
from tests.manifold.campaigns.service.worlds import a_world, copies, order, plan_for, propose


def test_an_approved_campaign_reaches_every_vehicle_once_and_completes(tmp_path: Path) -> None:
    targets = vins(20, seed=3)
    with a_world(tmp_path) as world:
        world.start_campaigner()

        async def play() -> Fleet:
            async with Fleet(world.settings, targets) as fleet:
                await fleet.connect()
                await propose(world.settings, plan_for("first", list(targets)), approve=False)
                await asyncio.to_thread(world.wait_for, "first", Stage.PROPOSED)
                assert not copies(fleet, "first")
                await order(world.settings, r.Approve("first", "approver"))
                await asyncio.to_thread(world.wait_for, "first", Stage.COMPLETED)
            return fleet

        fleet = asyncio.run(play())
        campaign = world.campaign("first")
    assert copies(fleet, "first") == dict.fromkeys(targets, 1)
    assert campaign.total(Status.DELIVERED) == 20
    decided = [order for _, order in sorted(campaign.orders.items()) if order.by.startswith(r.CAMPAIGNER)]
    assert [type(order) for order in decided] == [r.Fence, r.Start, r.Complete]
