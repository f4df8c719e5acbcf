"""Latency of writes to compacted queues against a plain publish, their CPU against raw MQTT, and rates of rewriting a key.

Payloads have 200 bytes. Every write is durable before it is delivered. For the CPU row, each message is acknowledged before the
next message to the same consumer is written. Draining is compared with draining the same number of entries from fanout queues.
"""

from functools import partial

from benchmarks import _ecq_writes, _raw_mqtt
from benchmarks._fleet import fleet
from benchmarks._ground import platform, vin
from benchmarks._measure import Row, Size, at_least, at_most, p50, percentile
from benchmarks._rates import come_and_drain
from benchmarks._redis_memory import bytes_a_live_key
from manifold.contracts.topics import ecq_filter, request_filter

AIMS = {
    "write → consumer, p50": at_most(3, "ms"),
    "write and deliver, CPU of dispatcher and recorder": at_most(150, "µs"),
    "one key rewritten, last tenth": at_least(0.9),
    "Redis, a live key of 100, with 200 bytes": at_most(450, "B"),
    "Redis, a live key of 10, with 200 bytes": at_most(450, "B"),
}
PLAIN, RAW = "a plain publish", "raw MQTT, CPU"
FIRST_CONSUMER, FIRST_VEHICLE = 100_000, 200_000  # the first numbers of consumers and vehicles that come online later
LIGHT_CONSUMERS = 20  # consumers while latency is measured
EACH_DRAINED = 20  # messages for each consumer that comes online


def run(size: Size) -> list[Row]:
    """Measure on one platform, except for memory, which is measured on a new Redis."""
    consumers, coming = size.pick(full=500, small=10), size.pick(full=5_000, small=10)
    writes = size.pick(full=50_000, small=100)
    rows: list[Row] = []
    with platform() as ground:
        writes_ms, plain_ms = _ecq_writes.latencies_ms(ground, LIGHT_CONSUMERS, size.pick(full=400, small=100))
        ours, theirs = p50(writes_ms), p50(plain_ms)
        rows.append(Row("write → consumer, p50", f"{ours:.2f} ms", PLAIN, ours / theirs, ours))
        ours, theirs = percentile(writes_ms, 0.99), percentile(plain_ms, 0.99)
        rows.append(Row("write → consumer, p99", f"{ours:.2f} ms", PLAIN, ours / theirs, ours))
        with fleet(ground.settings.mqtt, ecq_filter, vin) as road:
            road.connect(0, consumers)
            cost = _ecq_writes.write_and_deliver(ground, road, consumers, writes)
            drained = _ecq_writes.come_and_drain(ground, road, FIRST_CONSUMER, coming, EACH_DRAINED)
        with fleet(ground.settings.mqtt, partial(request_filter, ground.settings.topic_prefix), vin) as road:
            fanout = come_and_drain(ground, road, FIRST_VEHICLE, coming, EACH_DRAINED)
            raw = _raw_mqtt.measure(ground, road, ground.settings.mqtt, min(consumers, coming), writes, _vehicle)
        rates = _ecq_writes.rewrite_one_key(ground, size.pick(full=100_000, small=1_000))
    both_us = cost.cpu_us["dispatcher"] + cost.cpu_us["recorder"]
    drained_messages = coming * EACH_DRAINED
    rows += [
        Row("write and deliver, CPU of dispatcher and recorder", f"{both_us:.0f} µs", RAW, both_us / raw.cpu_us, both_us),
        Row("write and deliver", f"{cost.rate:,.0f}/s"),
        Row(f"{drained_messages:,} messages drained", f"{drained.rate:,.0f}/s", "fanout queues", drained.rate / fanout.rate),
        Row("one key rewritten, last tenth", f"{rates[-1]:,.0f}/s", "its first tenth", rates[-1] / rates[0]),
        Row("one key rewritten, slowest tenth", f"{min(rates):,.0f}/s", "its first tenth", min(rates) / rates[0]),
    ]
    for keys_each in (100, 10):
        used = bytes_a_live_key(size.pick(full=1_000, small=10), keys_each)
        rows.append(Row(f"Redis, a live key of {keys_each}, with 200 bytes", f"{used:.0f} B", value=used))
    return rows


def _vehicle(number: int) -> str:
    return vin(FIRST_VEHICLE + number)
