"""How fast a pause stops a campaign, and what a delivery of a campaign costs against one of an ordinary batch.

Vehicles that are online have many released entries each, one after the other, while a million more wait for vehicles that are
away. A pause comes through broker and recorder; its receipt and the last arrival after it are timed by one clock. The brake is
then taken off as by a campaigner. Deliveries of a campaign are compared with those of ordinary batches in the same run.
"""

import asyncio
import time
from functools import partial

from benchmarks import _rates
from benchmarks._fleet import Fleet, fleet
from benchmarks._ground import BATCH, DATA, Ground, platform, vin
from benchmarks._measure import Row, Size, at_most, p50, percentile
from manifold.contracts.brakes import OFF, Brake, EntryTrigger
from manifold.contracts.campaigns import Pause
from manifold.contracts.topics import request_filter
from manifold.messaging.publisher import Publisher
from manifold.queues import Policy, Queues, connect

NAME = "bench-brake"
PAUSED = "receipt of a pause → last arrival, p99"
COST = "deliveries of a campaign, more of the dispatcher's CPU than of batches"
AIMS = {PAUSED: at_most(1000, "ms"), COST: at_most(1, "µs")}
QUIET_S = 1.5  # without an arrival: nothing more comes
RELEASE = EntryTrigger(NAME, DATA, is_release=True)


def run(size: Size) -> list[Row]:
    """Measure the cost first, because a paused campaign leaves entries that the slow walk ends."""
    busy, each = size.pick(full=500, small=50), size.pick(full=200, small=40)
    released, rounds = size.pick(full=1_000_000, small=10_000), size.pick(full=20, small=3)
    with (
        platform() as ground,
        fleet(ground.settings.mqtt, partial(request_filter, ground.settings.topic_prefix), vin) as road,
    ):
        road.connect(0, busy)
        owners = [vin(n) for n in range(busy)]
        _rates.drain(ground, road, owners, each)  # warm
        costs = [
            [_rates.drain(ground, road, owners, each, trigger).cpu_us["dispatcher"] for trigger in (BATCH, RELEASE)]
            for _ in range(size.pick(full=5, small=3))
        ]
        ground.load((vin(busy + n) for n in range(released)), ground.seqs(1, RELEASE))
        took = [asyncio.run(_pause_ms(ground, road, owners, each)) for _ in range(rounds)]
    plain, of_campaign = (p50(each) for each in zip(*costs, strict=True))
    late, what = percentile(took, 0.99), f"{released:,} more released entries wait"
    return [
        Row(PAUSED, f"{late:.0f} ms of {rounds} pauses; {what}", value=late),
        Row(COST, f"{of_campaign - plain:+.1f} µs", "of batches", of_campaign / plain, of_campaign - plain),
    ]


async def _pause_ms(ground: Ground, road: Fleet, owners: list[str], each: int) -> float:
    """Pause the campaign while its entries are delivered; returns the milliseconds from the receipt to the last arrival."""
    road.take()
    await asyncio.to_thread(ground.load, owners, ground.seqs(each, RELEASE))
    await asyncio.to_thread(road.wait, len(owners), _rates.WITHIN_S)
    async with Publisher(ground.settings, ground.settings.mqtt_username_campaigns) as publisher:
        receipt = await publisher.order(Pause(NAME, "bench"))
        received_at = time.monotonic()
    if receipt.reason is not None:
        raise RuntimeError(receipt.reason)
    last = received_at
    while time.monotonic() < last + QUIET_S:
        await asyncio.sleep(QUIET_S / 10)
        last = max([last, *road.take().at_s])
    await asyncio.to_thread(ground.settle, owners)
    async with connect(ground.settings.redis) as redis:
        paused = Brake(receipt.seq, "pause")
        if not await Queues(redis, Policy.of(ground.settings)).turn_brake(NAME, paused, paused._replace(word=OFF)):
            raise RuntimeError("the brake was not that of the pause")
    return (last - received_at) * 1000
