"""Measures sustained rates of dispatchers, CPU of a delivery, latencies at a given rate, and latencies of large triggers."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from benchmarks._fleet import Fleet
from benchmarks._ground import BATCH, DATA, PAYLOAD, REQUEST, Ground, vin
from manifold.contracts import topics
from manifold.contracts.brakes import EntryTrigger
from manifold.messaging.mqtt import Mqtt

KINDS = ("dispatcher", "tap", "broker", "redis", "recorder")
TIMEOUT_S = 600.0
TICK_S = 0.005  # entries that are due within one tick are queued together
MAX_QUEUED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Rate:
    """Deliveries or heartbeats a second, and microseconds of CPU for each, by kind of process."""

    rate: float
    cpu_us: dict[str, float]


def drain(ground: Ground, fleet: Fleet, owners: Sequence[str], entries_each: int, trigger: EntryTrigger = BATCH) -> Rate:
    """Deliver `entries_each` entries to each owner. All owners are online, so each acknowledgement triggers the next delivery."""
    seqs = ground.seqs(entries_each, trigger)
    count = entries_each * len(owners)
    fleet.take()
    cpu_before, began = cpu_s(ground), time.monotonic()
    ground.load(owners, seqs)
    ended = fleet.wait(count, TIMEOUT_S)
    ground.settle(owners)
    return Rate(count / (ended - began), cpu_us(ground, cpu_before, count))


def wake(ground: Ground, fleet: Fleet, owners: Sequence[str], rounds: int) -> Rate:
    """Deliver one entry to every owner, `rounds` times. Each delivery begins with a wake-up, and no further entry waits."""
    fleet.take()
    cpu_before, began = cpu_s(ground), time.monotonic()
    for number in range(rounds):
        ground.load(owners, ground.seqs(1))
        ended = fleet.wait((number + 1) * len(owners), TIMEOUT_S)
    ground.settle(owners)
    count = rounds * len(owners)
    return Rate(count / (ended - began), cpu_us(ground, cpu_before, count))


def beat(ground: Ground, fleet: Fleet, vehicles: int, rounds: int) -> Rate:
    """Send `rounds` heartbeats from each vehicle, while no entry is pending for any of them."""
    count = vehicles * rounds
    heartbeats_before = _heartbeats(ground)
    cpu_before, began = cpu_s(ground), time.monotonic()
    fleet.beat(vehicles, rounds)
    while (processed := _heartbeats(ground) - heartbeats_before) < count:
        if time.monotonic() - began > TIMEOUT_S:
            raise TimeoutError(f"{processed} of {count} heartbeats were processed")
        time.sleep(0.05)
    return Rate(count / (time.monotonic() - began), cpu_us(ground, cpu_before, count))


def latencies_ms(ground: Ground, fleet: Fleet, owners: Sequence[str], rate: float, for_s: float) -> list[float]:
    """Return the milliseconds from queueing each entry to its arrival at the vehicle, at `rate` entries a second for `for_s`."""
    count = max(100, int(rate * for_s))
    seqs = ground.seqs(count)
    ground.seal()
    fleet.take()
    queued_at: dict[int, float] = {}  # by seq
    began = time.monotonic()
    while len(queued_at) < count:
        now = time.monotonic()
        queued, due_by_now = len(queued_at), int((now - began) * rate) + 1
        due = range(queued, min(count, due_by_now, queued + MAX_QUEUED_AT_ONCE))
        queued_at |= {seqs[number]: now for number in due}
        ground.offer((owners[number % len(owners)], [(seqs[number], REQUEST)]) for number in due)
        time.sleep(TICK_S)
    fleet.wait(count, TIMEOUT_S)
    ground.settle(owners)
    arrivals = fleet.take()
    return [(at_s - queued_at[seq]) * 1000 for seq, at_s in zip(arrivals.seqs, arrivals.at_s, strict=True) if seq in queued_at]


def come_and_drain(ground: Ground, fleet: Fleet, first: int, vehicles: int, entries_each: int) -> Rate:
    """Let vehicles with `entries_each` pending entries come online, a hundred at a time; return the rate of delivery."""
    owners = [vin(number) for number in range(first, first + vehicles)]
    ground.load(owners, ground.seqs(entries_each))
    count = vehicles * entries_each
    fleet.take()
    cpu_before, began = cpu_s(ground), time.monotonic()
    fleet.connect(first, vehicles)
    ended = fleet.wait(count, TIMEOUT_S * 2)
    ground.settle(owners)
    return Rate(count / (ended - began), cpu_us(ground, cpu_before, count))


def trigger_ms(ground: Ground, fleet: Fleet, vehicles: int, rounds: int) -> float:
    """Return the median milliseconds from publishing a trigger to its arrival at the last vehicle.

    The trigger names the first `vehicles` vehicles, all of which are online.
    """
    latencies = [asyncio.run(_trigger_ms(ground, fleet, vehicles, number)) for number in range(rounds)]
    return sorted(latencies)[rounds // 2]


async def _trigger_ms(ground: Ground, fleet: Fleet, vehicles: int, number: int) -> float:
    vins = [vin(index) for index in range(vehicles)]
    random.Random(vehicles).shuffle(vins)
    body = msgspec.json.encode({"ids": vins, "request_id": f"trigger_{vehicles}_{number}", "data_id": DATA})
    async with Mqtt(ground.settings.mqtt, "sdv-pub-bench", username="sdv-pub-bench") as publisher:
        await publisher.wait_connected()
        await publisher.publish(topics.data_topic(DATA), PAYLOAD)
        fleet.take()
        began = time.monotonic()
        sending = publisher.publish(topics.TRIGGER, body)
        ended = await asyncio.to_thread(fleet.wait, vehicles, TIMEOUT_S)
        await sending
    await asyncio.to_thread(ground.settle, vins)
    return (ended - began) * 1000


def cpu_s(ground: Ground) -> dict[str, float]:
    """Return the CPU seconds of each kind of process."""
    return {kind: ground.cpu_s(kind) for kind in KINDS}


def cpu_us(ground: Ground, before: dict[str, float], count: int) -> dict[str, float]:
    """Return the microseconds of CPU for each of `count` events, by kind of process; `before` is an earlier result of `cpu_s`."""
    return {kind: (ground.cpu_s(kind) - before[kind]) / count * 1e6 for kind in KINDS}


def _heartbeats(ground: Ground) -> float:
    """Return the number of heartbeats that the dispatcher has processed, by its own metric."""
    settings = ground.settings
    text = httpx.get(f"http://{settings.host}:{settings.dispatcher_port}/metrics").text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    events = (sample for sample in samples if sample.name.endswith("events_total"))
    return sum(sample.value for sample in events if sample.labels.get("event") == "heartbeat")
