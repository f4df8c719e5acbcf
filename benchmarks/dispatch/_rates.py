"""Sustained rates of the dispatchers, what a delivery costs them, and how late it is at a part of the maximum."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.dispatch._fleet import Fleet
from benchmarks.dispatch._ground import REQUEST, Ground, vin

KINDS = ("dispatcher", "tap", "broker", "redis", "recorder")
WITHIN_S = 600.0
TICK_S = 0.005  # entries that are due within it are queued together
A_FLUSH = 500


@dataclass(frozen=True, slots=True)
class Rate:
    """Deliveries (or signs) a second, and microseconds of CPU each, by kind of process, of all processes of that kind."""

    rate: float
    cpu_us: dict[str, float]


def drain(ground: Ground, fleet: Fleet, owners: Sequence[str], each: int) -> Rate:
    """`each` entries for each of the owners, who are here: every acknowledgement brings the next."""
    seqs, count = ground.seqs(each), each * len(owners)
    fleet.take()
    before, began = _cpu(ground), time.monotonic()
    ground.load(owners, seqs)
    ended = fleet.wait(count, WITHIN_S)
    ground.settle(owners)
    return Rate(count / (ended - began), _spent(ground, before, count))


def wake(ground: Ground, fleet: Fleet, owners: Sequence[str], rounds: int) -> Rate:
    """One entry for all of the owners, again and again: each delivery begins with a wake-up and finds nothing behind it."""
    fleet.take()
    before, began = _cpu(ground), time.monotonic()
    for number in range(rounds):
        ground.load(owners, ground.seqs(1))
        ended = fleet.wait((number + 1) * len(owners), WITHIN_S)
    ground.settle(owners)
    count = rounds * len(owners)
    return Rate(count / (ended - began), _spent(ground, before, count))


def beat(ground: Ground, fleet: Fleet, vehicles: int, rounds: int) -> Rate:
    """Heartbeats of vehicles for which nothing is pending."""
    count = vehicles * rounds
    heard_before = _heartbeats(ground)
    before, began = _cpu(ground), time.monotonic()
    fleet.beat(vehicles, rounds)
    while _heartbeats(ground) - heard_before < count:
        if time.monotonic() - began > WITHIN_S:
            raise TimeoutError(f"{_heartbeats(ground) - heard_before} of {count} heartbeats came")
        time.sleep(0.05)
    return Rate(count / (time.monotonic() - began), _spent(ground, before, count))


def latencies_ms(ground: Ground, fleet: Fleet, owners: Sequence[str], rate: float, for_s: float) -> list[float]:
    """From the moment that an entry is given to the queues until its vehicle has it, at `rate` entries a second."""
    count = max(100, int(rate * for_s))
    seqs = ground.seqs(count)
    ground.seal()
    fleet.take()
    given: dict[int, float] = {}
    began = time.monotonic()
    while len(given) < count:
        now = time.monotonic()
        due = range(len(given), min(count, int((now - began) * rate) + 1, len(given) + A_FLUSH))
        given |= {seqs[number]: now for number in due}
        ground.offer((owners[number % len(owners)], [(seqs[number], REQUEST)]) for number in due)
        time.sleep(TICK_S)
    fleet.wait(count, WITHIN_S)
    ground.settle(owners)
    came = fleet.take()
    return [(at_s - given[seq]) * 1000 for seq, at_s in zip(came.seqs, came.at_s, strict=True) if seq in given]


def come_and_drain(ground: Ground, fleet: Fleet, first: int, vehicles: int, each: int) -> Rate:
    """Vehicles with `each` entries pending come online, a hundred at a time, and get what waits for them."""
    owners = [vin(number) for number in range(first, first + vehicles)]
    ground.load(owners, ground.seqs(each))
    count = vehicles * each
    fleet.take()
    before, began = _cpu(ground), time.monotonic()
    fleet.connect(first, vehicles)
    ended = fleet.wait(count, WITHIN_S * 2)
    ground.settle(owners)
    return Rate(count / (ended - began), _spent(ground, before, count))


def _cpu(ground: Ground) -> dict[str, float]:
    return {kind: ground.cpu_s(kind) for kind in KINDS}


def _spent(ground: Ground, before: dict[str, float], count: int) -> dict[str, float]:
    return {kind: (ground.cpu_s(kind) - before[kind]) / count * 1e6 for kind in KINDS}


def _heartbeats(ground: Ground) -> float:
    s = ground.settings
    text = httpx.get(f"http://{s.host}:{s.dispatcher_port}/metrics").text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(s.value for s in samples if s.name.endswith("events_total") and s.labels.get("event") == "heartbeat")
