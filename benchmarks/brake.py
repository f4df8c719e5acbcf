"""How fast a pause stops a campaign, and what a delivery of a campaign costs against one of an ordinary batch.

Each online vehicle has many released entries, which it gets one after the other. A million more entries wait for offline
vehicles. The pause is sent through broker and recorder. Its receipt and the last arrival after the receipt are timed by the same
clock. The benchmark then releases the brake as a campaigner does. Deliveries of a campaign are compared with deliveries of
ordinary batches in the same run.
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
QUIET_S = 1.5  # after this time without an arrival, no more are expected
RELEASE = EntryTrigger(NAME, DATA, is_release=True)


def run(size: Size) -> list[Row]:
    """Measure the cost first: a pause leaves entries of the campaign, which the platform then ends bit by bit."""
    busy, entries_each = size.pick(full=500, small=50), size.pick(full=200, small=40)
    released, rounds = size.pick(full=1_000_000, small=10_000), size.pick(full=20, small=3)
    with (
        platform() as ground,
        fleet(ground.settings.mqtt, partial(request_filter, ground.settings.topic_prefix), vin) as vehicles,
    ):
        vehicles.connect(0, busy)
        owners = [vin(number) for number in range(busy)]
        _rates.drain(ground, vehicles, owners, entries_each)  # warm up
        batch_us, campaign_us = list[float](), list[float]()
        for _ in range(size.pick(full=5, small=3)):
            batch_us.append(_rates.drain(ground, vehicles, owners, entries_each, BATCH).cpu_us["dispatcher"])
            campaign_us.append(_rates.drain(ground, vehicles, owners, entries_each, RELEASE).cpu_us["dispatcher"])
        ground.load((vin(busy + number) for number in range(released)), ground.seqs(1, RELEASE))
        pauses_ms = [asyncio.run(_pause_ms(ground, vehicles, owners, entries_each)) for _ in range(rounds)]
    batch, campaign = p50(batch_us), p50(campaign_us)
    pause_p99 = percentile(pauses_ms, 0.99)
    figure = f"{pause_p99:.0f} ms of {rounds} pauses; {released:,} more released entries wait"
    return [
        Row(PAUSED, figure, value=pause_p99),
        Row(COST, f"{campaign - batch:+.1f} µs", "of batches", campaign / batch, campaign - batch),
    ]


async def _pause_ms(ground: Ground, vehicles: Fleet, owners: list[str], entries_each: int) -> float:
    """Pause the campaign while its entries are delivered; return the milliseconds from the receipt to the last arrival."""
    vehicles.take()
    await asyncio.to_thread(ground.load, owners, ground.seqs(entries_each, RELEASE))
    await asyncio.to_thread(vehicles.wait, len(owners), _rates.TIMEOUT_S)
    async with Publisher(ground.settings, ground.settings.mqtt_username_campaigns) as publisher:
        receipt = await publisher.order(Pause(NAME, "bench"))
        received_at = time.monotonic()
    if receipt.reason is not None:
        raise RuntimeError(receipt.reason)
    last_arrival = received_at
    while time.monotonic() < last_arrival + QUIET_S:
        await asyncio.sleep(QUIET_S / 10)
        last_arrival = max([last_arrival, *vehicles.take().at_s])
    await asyncio.to_thread(ground.settle, owners)
    async with connect(ground.settings.redis) as redis:
        paused = Brake(receipt.seq, "pause")
        if not await Queues(redis, Policy.of(ground.settings)).turn_brake(NAME, paused, paused._replace(word=OFF)):
            raise RuntimeError("the brake was not that of the pause")
    return (last_arrival - received_at) * 1000
