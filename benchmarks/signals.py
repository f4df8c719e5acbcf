"""Signals through the AMQP door, one and two processes, against a client of its library that only acknowledges them.

Signed signals of 1 KB are published as fast as they are consumed, with up to 5,000 in the queue. The door checks, seals and
records each signal, publishes its processed message and acknowledges it. Latency is the time from the publish to the processed
message, at 200 signals a second. The large signals of 1 MB are all delivered to the door at once. RabbitMQ, doors, client and
load share the cores.
"""

import time
from dataclasses import dataclass

from benchmarks._amqp_clients import RATE, acknowledging, latencies_ms
from benchmarks._amqp_load import LARGE_BYTES, load
from benchmarks._doors import POLL_S, TIMEOUT_S, Door, Ground, ground, wait_for
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
    """Signals a second from the first publish to the last acknowledgement, and microseconds of CPU for each signal."""

    rate: float
    client_us: float  # of all doors, or of the client that only acknowledges
    rabbitmq_us: float


def run(size: Size) -> list[Row]:
    """Measure on a new RabbitMQ and a new Redis."""
    count, large = size.pick(full=60_000, small=1_000), size.pick(full=100, small=10)
    with ground() as servers:
        raw = _acknowledged(servers, count)
        rows = [Row(RAW, f"{raw.rate:,.0f}/s"), Row(f"{RAW}, CPU: client, RabbitMQ", _cpu_text(raw))]
        for doors, what in ((1, "one door"), (2, "two doors")):
            ours = _sustained(servers, count, doors)
            rows.append(Row(what, f"{ours.rate:,.0f}/s", RAW, ours.rate / raw.rate, ours.rate))
            rows.append(Row(f"{what}, CPU: doors, RabbitMQ", _cpu_text(ours), f"{RAW}, CPU", ours.client_us / raw.client_us))
        with servers.doors(1):
            latencies = latencies_ms(servers.url, servers.secret, size.pick(full=6_000, small=600))
        for name, ms in (("p50", p50(latencies)), ("p99", percentile(latencies, 0.99))):
            rows.append(Row(f"publish → processed message, {name}", f"{ms:.1f} ms at {RATE:.0f}/s", value=ms))
        idle, peak = _memory_mb(servers, large)
        rows.append(Row(f"memory of a door with {large} signals of 1 MB in hand", f"{peak:.0f} MiB (idle: {idle:.0f} MiB)"))
    return rows


def _sustained(servers: Ground, count: int, door_count: int) -> Rate:
    """Publish `count` signals to this number of doors; return the rate of the doors."""
    with servers.doors(door_count) as doors, load(servers.url, servers.secret, count, seed=1 + door_count) as publisher:
        doors_before_s, rabbitmq_before_s = _cpu_s(doors), servers.cpu_s()
        began = time.monotonic()
        publisher.send(None)
        ended = wait_for(doors, count)
        publisher.recv()
        us_per_signal = 1e6 / count  # microseconds for each signal, of a second in total
        doors_us = (_cpu_s(doors) - doors_before_s) * us_per_signal
        return Rate(count / (ended - began), doors_us, (servers.cpu_s() - rabbitmq_before_s) * us_per_signal)


def _acknowledged(servers: Ground, count: int) -> Rate:
    """Publish `count` signals to a client that only acknowledges them; return the rate of the client."""
    servers.purge()
    with acknowledging(servers.url, count) as client, load(servers.url, servers.secret, count, seed=1) as publisher:
        rabbitmq_before_s, began = servers.cpu_s(), time.monotonic()
        publisher.send(None)
        client_s: float = client.recv()
        ended = time.monotonic()
        publisher.recv()
        us_per_signal = 1e6 / count
        rabbitmq_us = (servers.cpu_s() - rabbitmq_before_s) * us_per_signal
        return Rate(count / (ended - began), client_s * us_per_signal, rabbitmq_us)


def _memory_mb(servers: Ground, count: int) -> tuple[float, float]:
    """Return the memory of an idle door, and its peak with `count` messages of 1 MB, all of which fit into the prefetch."""
    with (
        servers.doors(1, signals_prefetch=count) as (door,),
        load(servers.url, servers.secret, count, seed=5, payload_bytes=LARGE_BYTES) as publisher,
    ):
        idle, peak = door.memory_mb(), 0.0
        deadline = time.monotonic() + TIMEOUT_S
        publisher.send(None)
        while door.processed() < count:
            peak = max(peak, door.memory_mb())
            if time.monotonic() > deadline:
                raise TimeoutError(f"{door.processed()} of {count} large signals after {TIMEOUT_S} s")
            time.sleep(POLL_S)
        return idle, max(peak, door.memory_mb())


def _cpu_s(doors: list[Door]) -> float:
    return sum(door.cpu_s() for door in doors)


def _cpu_text(rate: Rate) -> str:
    return f"{rate.client_us:.0f}, {rate.rabbitmq_us:.0f} µs"
