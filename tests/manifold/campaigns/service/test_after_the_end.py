"""What the campaigner keeps of a campaign that is over."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from manifold.campaigns.decided import Stage
from manifold.campaigns.service._active import Active
from manifold.campaigns.service._lead import Lead
from manifold.queues import connect
from tests.manifold.campaigns.service.worlds import World, a_world, plan_for, propose
from tests.support.servers import wait_until


async def awaited_after_the_end(world: World) -> bool:
    """Whether a campaigner still waits for a record of a campaign that its own last message has ended."""
    redis = connect(world.settings.redis)
    lead = Lead(world.settings, redis)
    ends = (datetime.now(UTC) + timedelta(seconds=5)).isoformat(timespec="seconds")
    await propose(world.settings, plan_for("short", ["V-short"], ends=ends))
    await lead.take()
    active = Active(world.settings, redis, lead, "has not read the record yet")
    work = asyncio.create_task(active.run())
    await asyncio.to_thread(world.wait_for, "short", Stage.COMPLETED)
    await asyncio.to_thread(wait_until, lambda: active.open_campaigns == 0)
    await asyncio.to_thread(wait_until, lambda: not active._awaited or work.done(), within_s=10)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await lead.leave()
    await redis.aclose()
    return bool(active._awaited)


def test_the_record_of_the_last_message_is_not_awaited(tmp_path: Path) -> None:
    with a_world(tmp_path) as world:
        assert not asyncio.run(awaited_after_the_end(world))
