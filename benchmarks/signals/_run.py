"""The whole run: each figure after the other, on servers of its own."""

from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks.machine import Row
from benchmarks.signals import _clients, _door, _ingest, _latency
from benchmarks.signals._ground import Ground, ground
from benchmarks.size import Scaled, full

SETTING = "{size.signals:,} signed signals of 1 KB, as fast as they come; {size.ingested:,} for ingest"
ONE_AIM, TWO_AIM, RAW_AIM = 3000, 5000, 0.5
DOOR, LAKE, LIBRARIES = "door", "ingest", "libraries"
ROUNDS = 3  # of the libraries, each after the other
PREFETCH = 200  # where a site wants more than the contract's 50
P50_AIM_MS, P99_AIM_MS = 10, 40


@dataclass(frozen=True)
class Size(Scaled):
    """How much of everything."""

    signals: int = full(60_000, least=1000)
    timed: int = full(6_000, least=600)
    large: int = full(100, least=10)
    ingested: int = full(10_000_000, least=100_000)


def run(size: Size, case: str = "all") -> list[Row]:
    """All figures, those of the door, that of the lake, or what each library takes for a message."""
    rows = list[Row]()
    if case != LAKE:
        with ground() as place:
            if case != LIBRARIES:
                rows += _rates(place, size) + _latencies(place, size) + _large(place, size)
            if case != DOOR:
                rows += _libraries(place, size.signals // 6)
    return rows + (_ingest.ingested(size.ingested) if case not in (DOOR, LIBRARIES) else [])


def _rates(place: Ground, size: Size) -> list[Row]:
    raw = _door.acknowledged(place, size.signals, seed=1)
    one = _door.sustained(place, size.signals, 1, seed=2)
    two = _door.sustained(place, size.signals, 2, seed=3)
    more = _door.sustained(place, size.signals, 1, seed=7, signals_prefetch=PREFETCH)
    with place.second_version():
        second = _door.sustained(place, size.signals, 1, seed=8, signals_prefetch=PREFETCH)
    return [
        Row("aio-pika, acknowledging only", f"{raw.rate:,.0f}/s", "1.00"),
        Row("one door", f"{one.rate:,.0f}/s", "", f"≥ {ONE_AIM:,}/s", one.rate >= ONE_AIM),
        Row(
            "one door, of acknowledging only",
            f"{one.rate / raw.rate:.2f}",
            "",
            f"≥ {RAW_AIM}",
            one.rate >= RAW_AIM * raw.rate,
            f"{raw.door_us / one.door_us:.2f}",
        ),
        Row("two doors", f"{two.rate:,.0f}/s", f"{two.rate / raw.rate:.2f}", f"≥ {TWO_AIM:,}/s", two.rate >= TWO_AIM),
        *(
            Row(
                f"CPU a signal, {what}: client or doors, RabbitMQ, load",
                f"{r.door_us:.0f}, {r.rabbitmq_us:.0f}, {r.load_us:.0f} µs",
            )
            for what, r in (
                ("acknowledging only", raw),
                ("one door", one),
                ("two doors", two),
                (f"one door with a prefetch of {PREFETCH}", more),
                ("the same, queues of version 2", second),
            )
        ),
    ]


def _latencies(place: Ground, size: Size) -> list[Row]:
    took = _latency.latencies_ms(place, size.timed, seed=4)
    p50, p99 = median(took), quantiles(took, n=100)[98]
    what = f"publish to processed message, {_latency.RATE:.0f}/s"
    return [
        Row(f"{what}: median", f"{p50:.1f} ms", "", f"≤ {P50_AIM_MS} ms", p50 <= P50_AIM_MS),
        Row(f"{what}: p99", f"{p99:.1f} ms", "", f"≤ {P99_AIM_MS} ms", p99 <= P99_AIM_MS),
        Row(f"{what}: the slowest", f"{max(took):.0f} ms"),
    ]


def _large(place: Ground, size: Size) -> list[Row]:
    found = _door.large(place, size.large, seed=5)
    return [
        Row(f"{size.large} signals of 1 MB, all in hand", f"{found.seconds:.1f} s"),
        Row("memory of the door: before, at most", f"{found.before_mb:.0f}, {found.most_mb:.0f} MiB"),
    ]


def _libraries(place: Ground, count: int) -> list[Row]:
    rounds = [{name: _clients.cost_us(place, name, count, seed=6) for name in _clients.LIBRARIES} for _ in range(ROUNDS)]
    costs = {name: [one[name] for one in rounds] for name in _clients.LIBRARIES}
    least = median(costs[_clients.DOORS_WAY])
    return [
        Row(f"CPU a message taken, published and acknowledged: {name}", f"{median(each):.0f} µs", f"{median(each) / least:.2f}")
        for name, each in costs.items()
    ]
