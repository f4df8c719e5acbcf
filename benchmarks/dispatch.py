"""Rate, CPU and latency of a dispatcher against raw MQTT: its client library alone, to the same vehicles over the same broker.

Payloads have 200 bytes. The vehicles are bare connections in one process on the same cores. Raw MQTT publishes through the same
event tap and Mosquitto, with the same window, but has no queues to decide about. *Chained* deliveries: many entries wait for each
vehicle, and each acknowledgement triggers the next delivery. *Woken* deliveries: each begins with a wake-up, and no further entry
waits. Chained deliveries go to 500 vehicles, woken ones to 5,000. Two dispatchers are compared with one: once as with Mosquitto,
where both get every event, and once as with EMQX, where each event goes to one of them.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

from benchmarks import _rates, _raw_mqtt, _redis_memory
from benchmarks._fleet import Fleet, fleet
from benchmarks._ground import Ground, platform, vin
from benchmarks._measure import Row, Size, at_least, at_most, p50, percentile
from benchmarks._rates import Rate
from benchmarks._raw_mqtt import Raw
from benchmarks._shared_events import sharing
from manifold.contracts.topics import request_filter

RAW, ONE = "raw MQTT", "one dispatcher"
AIMS = {
    "chained deliveries": at_least(0.5),
    "chained deliveries, dispatcher's CPU": at_most(50, "µs"),
    "woken deliveries": at_least(0.5),
    "woken deliveries, dispatcher's CPU": at_most(60, "µs"),
    "queue → vehicle at half of the woken rate, p50": at_most(5, "ms"),
    "queue → vehicle at half of the woken rate, p99": at_most(25, "ms"),
    "trigger for 200 vehicles → the last of them": at_most(30, "ms"),
    "chained, 1,000,000 owners with entries, dispatcher's CPU": at_most(1.25),
    "two dispatchers that share events, CPU of both": at_most(1.1),
    "Redis, an entry of an owner with 100": at_most(250, "B"),
}


def run(size: Size) -> list[Row]:
    """Measure one dispatcher on one platform, then compare one and two dispatchers on new platforms."""
    deliveries, busy = size.pick(full=100_000, small=5_000), size.pick(full=500, small=100)
    vehicles, owners = size.pick(full=5_000, small=200), size.pick(full=1_000_000, small=10_000)
    entries_each = deliveries // busy
    rows = list(_memory(owners))
    with platform() as ground:
        with fleet(ground.settings.mqtt, _requests(ground), vin) as road:
            road.connect(0, vehicles)
            raw = _raw_mqtt.measure(ground, road, ground.settings.mqtt, busy, deliveries)
            all_vins = [vin(number) for number in range(vehicles)]
            busy_vins = all_vins[:busy]
            chained = _rates.drain(ground, road, busy_vins, entries_each)
            woken = _rates.wake(ground, road, all_vins, max(1, deliveries // vehicles))
            parts = f"publisher {raw.publisher_us:.0f}, tap {raw.tap_us:.0f}, broker {raw.broker_us:.0f} µs"
            rows += [Row(RAW, f"{raw.rate:,.0f}/s"), Row(f"{RAW}, CPU of a delivery", f"{raw.cpu_us:.0f} µs: {parts}")]
            rows += [*_deliveries("chained", chained, raw), *_deliveries("woken", woken, raw)]
            rows += _latencies(ground, road, busy_vins, woken.rate / 2, size.pick(full=10.0, small=3.0))
            heartbeats_each = max(1, size.pick(full=50_000, small=5_000) // vehicles)
            rows += _heartbeats(_rates.beat(ground, road, vehicles, heartbeats_each))
            ms = _rates.trigger_ms(ground, road, 200, rounds=5)
            rows.append(Row("trigger for 200 vehicles → the last of them", f"{ms:.0f} ms", value=ms))
            ground.load((vin(number) for number in range(vehicles, owners)), ground.seqs(1))
            beside_many = _rates.drain(ground, road, busy_vins, entries_each)
            what = f"chained, {owners:,} owners with entries, dispatcher's CPU"
            rows.append(_compared(what, beside_many, "few owners with entries", chained))
        with fleet(ground.settings.mqtt, _requests(ground), vin) as road:
            entries = size.pick(full=1_000_000, small=10_000)
            coming = _rates.come_and_drain(ground, road, owners, vehicles, entries // vehicles)
            what = f"{entries:,} entries to {vehicles:,} vehicles that come online"
            rows.append(Row(what, f"{coming.rate:,.0f}/s", RAW, coming.rate / raw.rate))
    return rows + list(_two_dispatchers(busy_vins, entries_each))


def _memory(owners: int) -> Iterator[Row]:
    memory = _redis_memory.measure(owners)
    yield Row("Redis, an entry of an owner with 100", f"{memory.many_entries:.0f} B", value=memory.many_entries)
    yield Row("Redis, an owner with one entry", f"{memory.single_entry:.0f} B")
    yield Row("Redis, presence of an idle owner", f"{memory.idle_owner:.0f} B")


def _deliveries(how: str, rate: Rate, raw: Raw) -> Iterator[Row]:
    cost = rate.cpu_us["dispatcher"]
    yield Row(f"{how} deliveries", f"{rate.rate:,.0f}/s", RAW, rate.rate / raw.rate)
    yield Row(f"{how} deliveries, dispatcher's CPU", f"{cost:.0f} µs", f"{RAW}, CPU", cost / raw.cpu_us, cost)


def _latencies(ground: Ground, road: Fleet, owners: list[str], rate: float, for_s: float) -> Iterator[Row]:
    latencies = _rates.latencies_ms(ground, road, owners, rate, for_s)
    for name, ms in (("p50", p50(latencies)), ("p99", percentile(latencies, 0.99))):
        yield Row(f"queue → vehicle at half of the woken rate, {name}", f"{ms:.1f} ms", value=ms)


def _heartbeats(rate: Rate) -> Iterator[Row]:
    yield Row("heartbeats with nothing pending", f"{rate.rate:,.0f}/s, {rate.cpu_us['dispatcher']:.0f} µs of dispatcher's CPU")


def _two_dispatchers(owners: list[str], entries_each: int) -> Iterator[Row]:
    one = _drained(owners, entries_each)
    unshared = _drained(owners, entries_each, dispatchers=2)
    yield _compared("two dispatchers that both get every event, CPU of both", unshared, ONE, one)
    shared = _drained(owners, entries_each, shares_events=True)
    yield _compared("two dispatchers that share events, CPU of both", shared, ONE, one)


def _drained(owners: list[str], entries_each: int, *, dispatchers: int = 1, shares_events: bool = False) -> Rate:
    """Return the rate of chained deliveries on a new platform; with `shares_events`, two dispatchers share their events."""
    with (
        platform(dispatchers=dispatchers) as ground,
        sharing(ground) if shares_events else nullcontext(),
        fleet(ground.settings.mqtt, _requests(ground), vin) as road,
    ):
        road.connect(0, len(owners))
        return _rates.drain(ground, road, owners, entries_each)


def _compared(what: str, rate: Rate, rival: str, rival_rate: Rate) -> Row:
    ours, theirs = rate.cpu_us["dispatcher"], rival_rate.cpu_us["dispatcher"]
    return Row(what, f"{ours:.0f} µs", rival, ours / theirs)


def _requests(ground: Ground) -> Callable[[str], str]:
    return partial(request_filter, ground.settings.topic_prefix)
