"""From one trigger of many VINs, published by the platform, to the last of its vehicles that are connected."""

import asyncio
import random
import time

import msgspec

from benchmarks.dispatch._fleet import Fleet
from benchmarks.dispatch._ground import DATA, PAYLOAD, Ground, vin
from manifold.contracts import topics
from manifold.messaging.mqtt import Mqtt

WITHIN_S = 120.0
ROUNDS = 5


def last_delivery_ms(ground: Ground, fleet: Fleet, ids: int, connected: int, rounds: int = ROUNDS) -> float:
    """The median of some rounds: from publishing a trigger of `ids` VINs to the last of the first `connected`, which are here."""
    took = [asyncio.run(_once(ground, fleet, ids, connected, number)) for number in range(rounds)]
    return sorted(took)[rounds // 2]


async def _once(ground: Ground, fleet: Fleet, ids: int, connected: int, number: int) -> float:
    vins = [vin(n) for n in range(ids)]
    random.Random(ids).shuffle(vins)  # those that are here are anywhere among the others
    body = msgspec.json.encode({"ids": vins, "request_id": f"trigger_{ids}_{number}", "data_id": DATA})
    async with Mqtt(ground.settings.mqtt, "sdv-pub-bench", username="sdv-pub-bench") as platform:
        await platform.wait_connected()
        await platform.publish(topics.data_topic(DATA), PAYLOAD)
        fleet.take()
        began = time.monotonic()
        sending = platform.publish(topics.TRIGGER, body)
        ended = await asyncio.to_thread(fleet.wait, connected, WITHIN_S)
        await sending
    await asyncio.to_thread(ground.settle, [vin(n) for n in range(connected)])
    return (ended - began) * 1000
