"""Signals through the AMQP door, one and two processes, against a client of its library that only acknowledges them.

Signed signals of 1 KB are published as fast as they are consumed, with up to 5,000 in the queue; the door checks, seals and
records each, publishes its processed message and acknowledges it. Latency is from the publish to the processed message at 200
signals a second. Large signals of 1 MB are all in the door's hands at once. RabbitMQ, door, client and load share the cores.
"""

import time
from dataclasses import dataclass

from benchmarks._amqp_clients import RATE, acknowledging, latencies_ms
from benchmarks._amqp_load import LARGE_BYTES, load
from benchmarks._doors import LOOK_S, WITHIN_S, Door, Ground, ground, wait_for
from benchmarks._measure import Row, Size, at_least, at_most, p50, percentile

RAW = "aio-pika, acknowledging only"
AIMS = {
    "one door": at_least(1500, "/s"),
    "two doors": at_least(3000, "/s"),
    "publish → processed message, p50": at_most(10, "ms"),
    "publish → processed message, p99": at_most(40, "ms"),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """Signals a second, from the first publish to the last acknowledgement; microseconds of CPU for each."""

    rate: float
    client_us: float  # of the doors, or of the client
    rabbitmq_us: float


def run(size: Size) -> list[Row]:
    """Measure on a RabbitMQ and a Redis of its own."""
    count, large = size.pick(full=60_000, small=1_000), size.pick(full=100, small=10)
    with ground() as place:
        raw = _acknowledged(place, count)
        rows = [Row(RAW, f"{raw.rate:,.0f}/s"), Row(f"{RAW}, CPU: client, RabbitMQ", _cpu_words(raw))]
        for doors, what in ((1, "one door"), (2, "two doors")):
            found = _sustained(place, count, doors)
            rows.append(Row(what, f"{found.rate:,.0f}/s", RAW, found.rate / raw.rate, found.rate))
            rows.append(Row(f"{what}, CPU: doors, RabbitMQ", _cpu_words(found), f"{RAW}, CPU", found.client_us / raw.client_us))
        with place.doors(1):
            took = latencies_ms(place.url, place.secret, size.pick(full=6_000, small=600))
        for name, ms in (("p50", p50(took)), ("p99", percentile(took, 0.99))):
            rows.append(Row(f"publish → processed message, {name}", f"{ms:.1f} ms at {RATE:.0f}/s", value=ms))
        before, most = _memory_mb(place, large)
        rows.append(Row(f"memory of a door with {large} signals of 1 MB in hand", f"{most:.0f} MiB (idle: {before:.0f} MiB)"))
    return rows


def _sustained(place: Ground, count: int, doors: int) -> Rate:
    with place.doors(doors) as running, load(place.url, place.secret, count, seed=1 + doors) as publisher:
        of_doors, of_rabbitmq, began = _cpu_s(running), place.cpu_s(), time.monotonic()
        publisher.send(None)
        ended = wait_for(running, count)
        publisher.recv()
        per_signal = 1e6 / count
        return Rate(
            count / (ended - began), (_cpu_s(running) - of_doors) * per_signal, (place.cpu_s() - of_rabbitmq) * per_signal
        )


def _acknowledged(place: Ground, count: int) -> Rate:
    """The same load, to a client that only acknowledges."""
    place.purge()
    with acknowledging(place.url, count) as client, load(place.url, place.secret, count, seed=1) as publisher:
        of_rabbitmq, began = place.cpu_s(), time.monotonic()
        publisher.send(None)
        client_s: float = client.recv()
        ended = time.monotonic()
        publisher.recv()
        per_signal = 1e6 / count
        return Rate(count / (ended - began), client_s * per_signal, (place.cpu_s() - of_rabbitmq) * per_signal)


def _memory_mb(place: Ground, count: int) -> tuple[float, float]:
    """Memory of an idle door, and its peak with `count` messages of 1 MB, all of which it may take at once."""
    with (
        place.doors(1, signals_prefetch=count) as (door,),
        load(place.url, place.secret, count, seed=5, payload_bytes=LARGE_BYTES) as publisher,
    ):
        before, most, ending = door.memory_mb(), 0.0, time.monotonic() + WITHIN_S
        publisher.send(None)
        while door.processed() < count:
            most = max(most, door.memory_mb())
            if time.monotonic() > ending:
                raise TimeoutError(f"{door.processed()} of {count} large signals after {WITHIN_S} s")
            time.sleep(LOOK_S)
        return before, max(most, door.memory_mb())


def _cpu_s(doors: list[Door]) -> float:
    return sum(door.cpu_s() for door in doors)


def _cpu_words(rate: Rate) -> str:
    return f"{rate.client_us:.0f}, {rate.rabbitmq_us:.0f} µs"
