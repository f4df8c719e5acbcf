"""Redis loses everything in the middle of a wave while its campaign is paused, and is rebuilt from archive and lake."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manifold.campaigns.decided import Stage
from manifold.campaigns.proof import wave_counts
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import wall_clock_ms
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.reads import TRIGGER_COLUMNS
from manifold.messaging.publisher import Publisher
from manifold.queues import Loader, Policy
from manifold.sandbox.fleet import Fleet, vins
from pipelines.populate.brakes import load_brakes
from pipelines.populate.snapshot_range import newest_seqs
from pipelines.populate.workers import entry_loader
from tests.manifold.campaigns.service.worlds import World, a_world, copies, order, plan_for, propose
from tests.pipelines.plain import ingest, read, rows_of
from tests.support.lake_rows import new_lake
from tests.support.servers import wait_until

NAME = "spring"


def rebuild(world: World) -> None:
    """Ingest the archive, and load brakes and pending entries, with the parts that Spark's workers run, and without Spark."""
    world.flush()
    settings, now = world.settings, datetime.now(UTC)
    catalog = new_lake(settings)
    ingest(catalog, settings, run_id="after-the-wipe", now=now)
    ended = {(row["vin"], row["seq"]) for row in read(catalog, OUTCOMES)}
    entries = [row for row in read(catalog, IDS) if (row["vin"], row["seq"]) not in ended]
    with world.platform.blocking() as redis:
        load_brakes(settings, redis, now)
        rows = rows_of(IDS, entries).select(["vin", "seq", *TRIGGER_COLUMNS])
        list(entry_loader(settings.redis, Policy.of(settings), wall_clock_ms())(rows.to_batches()))
        taken = (newest_seqs(catalog, stream=stream) for stream in (Stream.TRIGGER, Stream.ECQ))
        Loader(redis, Policy.of(settings)).mark_loaded(wall_clock_ms(), *taken)


def delivered_of(wave: dict[str, Any]) -> tuple[int, int]:
    """How many targets a wave has, and to how many of them it was delivered."""
    return wave["targets"], wave["states"]["delivered"]


def test_a_paused_campaign_stays_paused_over_a_wiped_redis_and_its_rebuild(tmp_path: Path) -> None:
    targets = vins(20, seed=71)
    first, here, away = targets[:4], targets[4:12], targets[12:]
    waves = [{"name": "first", "vins": list(first), "gate": {"success": "100%"}}, {"name": "rest", "size": "rest"}]
    with a_world(tmp_path) as world:
        world.start_campaigner()

        async def play() -> Fleet:
            async with Fleet(world.settings, targets) as fleet:
                await fleet.connect([*first, *here])
                await propose(world.settings, plan_for(NAME, list(targets), waves=waves, away="queue"))
                wait = asyncio.to_thread(
                    wait_until, lambda: world.campaign(NAME).total(Status.DELIVERED) == 12, what="all who are here to have it"
                )
                await wait
                assert world.campaign(NAME).total(Status.RELEASED) == 8
                assert (await order(world.settings, r.Pause(NAME, "ann"))).reason is None
                before = [delivered_of(wave) for wave in wave_counts(world.campaign(NAME))]

                with world.platform.blocking() as redis:
                    redis.flushall()
                await asyncio.to_thread(rebuild, world)

                with world.platform.blocking() as redis:
                    assert redis.hget(keys.BRAKES, NAME) is not None
                await fleet.connect(away)
                async with Publisher(world.settings) as platform:
                    await platform.trigger(list(away), "other", f"data-{NAME}")
                await fleet.wait_for(lambda fleet: copies(fleet, "other") == dict.fromkeys(away, 1), 60)
                assert copies(fleet, NAME) == dict.fromkeys([*first, *here], 1)
                paused = world.campaign(NAME)
                assert paused.decided.stage is Stage.PAUSED
                assert [delivered_of(wave) for wave in wave_counts(paused)] == before == [(4, 4), (16, 8)]
                await order(world.settings, r.Resume(NAME, "ann"))
                await asyncio.to_thread(world.wait_for, NAME, Stage.COMPLETED)
            return fleet

        fleet = asyncio.run(play())
        campaign = world.campaign(NAME)
    assert copies(fleet, NAME) == dict.fromkeys(targets, 1)
    assert campaign.total(Status.DELIVERED) == 20
