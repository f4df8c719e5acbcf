"""All parts of the run, in one platform where they can be, and their figures as rows."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

from benchmarks.dispatch import _memory, _rates, _raw, _triggers
from benchmarks.dispatch._fleet import Fleet, fleet
from benchmarks.dispatch._ground import Ground, platform, vin
from benchmarks.dispatch._rates import Rate
from benchmarks.dispatch._sharing import sharing
from benchmarks.dispatch._size import Size
from benchmarks.machine import Row
from manifold.contracts.topics import request_filter

SETTING = (
    "{size.deliveries:,} deliveries of 200 bytes over {size.busy} vehicles, {size.vehicles:,} connected, {size.owners:,} owners"
)
COST_AIM_US, RAW_AIM, TWO_AIM = 120.0, 0.5, 1.1
P50_AIM_MS, P99_AIM_MS, ALL_200_AIM_MS, ENTRY_AIM_BYTES = 5.0, 25.0, 60.0, 250
LOADS = (0.1, 0.5, 0.9)
FLAT_AIM = 1.25
DIRECT = 10_000_000  # vehicles that connect past the tap have numbers from here


def run(size: Size) -> list[Row]:
    """Measure everything."""
    rows = list(_memory_rows(size))
    with platform() as ground:
        with fleet(ground.settings.mqtt, _requests(ground), vin) as road:
            road.connect(0, size.vehicles)
            raw = _raw.measure(ground, road, ground.settings.mqtt, size.busy, size.deliveries)
            rows += _raw_rows(ground, raw, size)
            busy, everyone = [vin(n) for n in range(size.busy)], [vin(n) for n in range(size.vehicles)]
            chained = _rates.drain(ground, road, busy, size.deliveries // size.busy)
            woken = _rates.wake(ground, road, everyone, max(1, size.deliveries // size.vehicles))
            rows += _rate_rows("one after the other", chained, raw)
            rows += _rate_rows("each woken for", woken, raw)
            rows += _latency_rows(ground, road, busy, woken.rate, size)
            rows += _beat_rows(_rates.beat(ground, road, size.vehicles, max(1, size.beats // size.vehicles)))
            rows += _trigger_rows(ground, road, size)
            rows += _flat_rows(ground, road, busy, chained, size)
        with fleet(ground.settings.mqtt, _requests(ground), vin) as road:
            each = size.drain // size.vehicles
            coming = _rates.come_and_drain(ground, road, size.owners, size.vehicles, each)
            what = f"drain of {size.drain:,} entries over {size.vehicles:,} vehicles that come online"
            rows.append(
                Row(what, f"{size.drain / coming.rate:.0f} s, {coming.rate:,.0f}/s", f"{coming.rate / raw.rate:.2f} of raw")
            )
            rows.append(Row("… dispatcher CPU a delivery, their coming included", f"{coming.cpu_us['dispatcher']:.0f} µs"))
    return rows + list(_two_rows(size))


def _memory_rows(size: Size) -> Iterator[Row]:
    memory = _memory.measure(size.owners)
    met = memory.many_entries <= ENTRY_AIM_BYTES
    yield Row("Redis, an entry of an owner with 100", f"{memory.many_entries:.0f} B", "", f"≤ {ENTRY_AIM_BYTES} B", met)
    yield Row(f"Redis, an owner with one entry, of {size.owners:,}", f"{memory.single_entry:.0f} B")
    yield Row(f"Redis, an idle owner that was seen, of {size.owners:,}", f"{memory.idle_owner:.0f} B")


def _raw_rows(ground: Ground, raw: _raw.Raw, size: Size) -> Iterator[Row]:
    broker = f"mqtt://{ground.settings.host}:{ground.settings.broker_port}"
    with fleet(broker, _requests(ground), _direct) as road:
        road.connect(0, size.busy)
        direct = _raw.measure(ground, road, broker, size.busy, size.deliveries, _direct)
    yield Row("raw, past the tap", f"{direct.rate:,.0f}/s", f"{direct.rate / raw.rate:.2f} of raw", "")
    yield Row("raw: the client library through tap and broker", f"{raw.rate:,.0f}/s", "1.00")
    yield Row("raw, CPU a delivery: publisher, tap, broker", f"{raw.publisher_us:.0f}, {raw.tap_us:.0f}, {raw.broker_us:.0f} µs")


def _rate_rows(how: str, rate: Rate, raw: _raw.Raw) -> Iterator[Row]:
    ratio = rate.rate / raw.rate
    # On enough cores the busiest process sets the pace, and its CPU a delivery says what that is.
    by_cpu = max(raw.publisher_us, raw.tap_us, raw.broker_us) / max(rate.cpu_us.values())
    what, figure = f"delivered and acknowledged, {how}", f"{rate.rate:,.0f}/s"
    yield Row(what, figure, f"{ratio:.2f} of raw", f"≥ {RAW_AIM}", ratio >= RAW_AIM, f"{by_cpu:.2f}")
    cost = rate.cpu_us["dispatcher"]
    yield Row("… dispatcher CPU a delivery", f"{cost:.0f} µs", "", f"≤ {COST_AIM_US:.0f} µs", cost <= COST_AIM_US)
    yield Row("… CPU of the others, µs", ", ".join(f"{kind} {rate.cpu_us[kind]:.0f}" for kind in _rates.KINDS[1:]))


def _latency_rows(ground: Ground, road: Fleet, owners: list[str], top: float, size: Size) -> Iterator[Row]:
    for load in LOADS:
        took = sorted(_rates.latencies_ms(ground, road, owners, top * load, size.latency_s))
        p50, p99 = statistics.median(took), took[int(len(took) * 0.99)]
        aims, met = (
            ("", None) if load != 0.5 else (f"≤ {P50_AIM_MS:g} / {P99_AIM_MS:g} ms", p50 <= P50_AIM_MS and p99 <= P99_AIM_MS)
        )
        yield Row(f"queue → vehicle at {load:.0%} of each woken for, p50 / p99", f"{p50:.1f} / {p99:.1f} ms", "", aims, met)


def _beat_rows(rate: Rate) -> Iterator[Row]:
    yield Row("heartbeats with nothing pending", f"{rate.rate:,.0f}/s, {rate.cpu_us['dispatcher']:.0f} µs of dispatcher CPU each")


def _trigger_rows(ground: Ground, road: Fleet, size: Size) -> Iterator[Row]:
    ms = _triggers.last_delivery_ms(ground, road, 200, 200)
    yield Row("trigger for 200 VINs → last vehicle", f"{ms:.0f} ms", "", f"≤ {ALL_200_AIM_MS:g} ms", ms <= ALL_200_AIM_MS)
    ms = _triggers.last_delivery_ms(ground, road, size.trigger_ids, size.vehicles, rounds=1)
    yield Row(f"trigger for {size.trigger_ids:,} VINs → last of {size.vehicles:,} connected", f"{ms:,.0f} ms")


def _flat_rows(ground: Ground, road: Fleet, busy: list[str], few: Rate, size: Size) -> Iterator[Row]:
    ground.load((vin(n) for n in range(size.vehicles, size.owners)), ground.seqs(1))
    many = _rates.drain(ground, road, busy, size.deliveries // size.busy)
    ratio = many.cpu_us["dispatcher"] / few.cpu_us["dispatcher"]
    what = f"dispatcher CPU a delivery where {size.owners:,} owners have entries"
    yield Row(what, f"{many.cpu_us['dispatcher']:.0f} µs", f"{ratio:.2f} × of few", f"≤ {FLAT_AIM}", ratio <= FLAT_AIM)


def _two_rows(size: Size) -> Iterator[Row]:
    """One dispatcher, two that get every event both, as from Mosquitto, and two that share them, as from EMQX; side by side."""
    owners = [vin(n) for n in range(size.busy)]
    one = _drained(size, owners)
    both = _drained(size, owners, dispatchers=2)
    shared = _drained(size, owners, shared=True)
    cost = one.cpu_us["dispatcher"]
    yield Row("one dispatcher, one after the other: CPU a delivery", f"{cost:.0f} µs", "1.00")
    for what, rate in (("two that both get every event", both), ("two that share the events", shared)):
        ratio = rate.cpu_us["dispatcher"] / cost
        aim, met = (f"≤ {TWO_AIM}", ratio <= TWO_AIM) if rate is shared else ("", None)
        yield Row(
            f"{what}: CPU of both", f"{rate.cpu_us['dispatcher']:.0f} µs; {rate.rate:,.0f}/s", f"{ratio:.2f} × of one", aim, met
        )


def _drained(size: Size, owners: list[str], *, dispatchers: int = 1, shared: bool = False) -> Rate:
    with (
        platform(dispatchers=dispatchers) as ground,
        sharing(ground) if shared else nullcontext(),
        fleet(ground.settings.mqtt, _requests(ground), vin) as road,
    ):
        road.connect(0, size.busy)
        return _rates.drain(ground, road, owners, size.deliveries // size.busy)


def _direct(number: int) -> str:
    return vin(DIRECT + number)


def _requests(ground: Ground) -> Callable[[str], str]:
    return partial(request_filter, ground.settings.topic_prefix)
