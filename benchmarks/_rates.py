"""Sustained rates of dispatchers, CPU of a delivery, and latencies at a given rate and of large triggers."""

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
WITHIN_S = 600.0
TICK_S = 0.005  # entries due within it are queued together
MAX_QUEUED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Rate:
    """Deliveries (or heartbeats) a second, and microseconds of CPU for each, by kind of process."""

    rate: float
    cpu_us: dict[str, float]


def drain(ground: Ground, fleet: Fleet, owners: Sequence[str], each: int, trigger: EntryTrigger = BATCH) -> Rate:
    """Deliver `each` entries to each owner, all online: every acknowledgement brings the next entry."""
    seqs, count = ground.seqs(each, trigger), each * len(owners)
    fleet.take()
    before, began = cpu_s(ground), time.monotonic()
    ground.load(owners, seqs)
    ended = fleet.wait(count, WITHIN_S)
    ground.settle(owners)
    return Rate(count / (ended - began), cpu_us(ground, before, count))


def wake(ground: Ground, fleet: Fleet, owners: Sequence[str], rounds: int) -> Rate:
    """Deliver one entry to every owner, `rounds` times: each delivery begins with a wake-up and no entry follows it."""
    fleet.take()
    before, began = cpu_s(ground), time.monotonic()
    for number in range(rounds):
        ground.load(owners, ground.seqs(1))
        ended = fleet.wait((number + 1) * len(owners), WITHIN_S)
    ground.settle(owners)
    count = rounds * len(owners)
    return Rate(count / (ended - began), cpu_us(ground, before, count))


def beat(ground: Ground, fleet: Fleet, vehicles: int, rounds: int) -> Rate:
    """Send heartbeats of vehicles for which nothing is pending."""
    count = vehicles * rounds
    heard_before = _heartbeats(ground)
    before, began = cpu_s(ground), time.monotonic()
    fleet.beat(vehicles, rounds)
    while _heartbeats(ground) - heard_before < count:
        if time.monotonic() - began > WITHIN_S:
            raise TimeoutError(f"{_heartbeats(ground) - heard_before} of {count} heartbeats came")
        time.sleep(0.05)
    return Rate(count / (time.monotonic() - began), cpu_us(ground, before, count))


def latencies_ms(ground: Ground, fleet: Fleet, owners: Sequence[str], rate: float, for_s: float) -> list[float]:
    """Milliseconds from queueing an entry until its vehicle has it, at `rate` entries a second."""
    count = max(100, int(rate * for_s))
    seqs = ground.seqs(count)
    ground.seal()
    fleet.take()
    given: dict[int, float] = {}
    began = time.monotonic()
    while len(given) < count:
        now = time.monotonic()
        due = range(len(given), min(count, int((now - began) * rate) + 1, len(given) + MAX_QUEUED_AT_ONCE))
        given |= {seqs[number]: now for number in due}
        ground.offer((owners[number % len(owners)], [(seqs[number], REQUEST)]) for number in due)
        time.sleep(TICK_S)
    fleet.wait(count, WITHIN_S)
    ground.settle(owners)
    came = fleet.take()
    return [(at_s - given[seq]) * 1000 for seq, at_s in zip(came.seqs, came.at_s, strict=True) if seq in given]


def come_and_drain(ground: Ground, fleet: Fleet, first: int, vehicles: int, each: int) -> Rate:
    """Let vehicles with `each` entries pending come online, a hundred at a time, until all is delivered."""
    owners = [vin(number) for number in range(first, first + vehicles)]
    ground.load(owners, ground.seqs(each))
    count = vehicles * each
    fleet.take()
    before, began = cpu_s(ground), time.monotonic()
    fleet.connect(first, vehicles)
    ended = fleet.wait(count, WITHIN_S * 2)
    ground.settle(owners)
    return Rate(count / (ended - began), cpu_us(ground, before, count))


def trigger_ms(ground: Ground, fleet: Fleet, vehicles: int, rounds: int) -> float:
    """Median milliseconds from publishing a trigger for the first `vehicles`, all online, until the last of them has it."""
    took = [asyncio.run(_trigger_ms(ground, fleet, vehicles, number)) for number in range(rounds)]
    return sorted(took)[rounds // 2]


async def _trigger_ms(ground: Ground, fleet: Fleet, vehicles: int, number: int) -> float:
    vins = [vin(n) for n in range(vehicles)]
    random.Random(vehicles).shuffle(vins)
    body = msgspec.json.encode({"ids": vins, "request_id": f"trigger_{vehicles}_{number}", "data_id": DATA})
    async with Mqtt(ground.settings.mqtt, "sdv-pub-bench", username="sdv-pub-bench") as publisher:
        await publisher.wait_connected()
        await publisher.publish(topics.data_topic(DATA), PAYLOAD)
        fleet.take()
        began = time.monotonic()
        sending = publisher.publish(topics.TRIGGER, body)
        ended = await asyncio.to_thread(fleet.wait, vehicles, WITHIN_S)
        await sending
    await asyncio.to_thread(ground.settle, [vin(n) for n in range(vehicles)])
    return (ended - began) * 1000


def cpu_s(ground: Ground) -> dict[str, float]:
    """Return the CPU seconds of each kind of process."""
    return {kind: ground.cpu_s(kind) for kind in KINDS}


def cpu_us(ground: Ground, before: dict[str, float], count: int) -> dict[str, float]:
    """Return the microseconds of CPU of each kind of process since `before`, for each of `count`."""
    return {kind: (ground.cpu_s(kind) - before[kind]) / count * 1e6 for kind in KINDS}


def _heartbeats(ground: Ground) -> float:
    s = ground.settings
    text = httpx.get(f"http://{s.host}:{s.dispatcher_port}/metrics").text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(s.value for s in samples if s.name.endswith("events_total") and s.labels.get("event") == "heartbeat")
