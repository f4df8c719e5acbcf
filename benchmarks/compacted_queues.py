"""From a write of a compacted queue to its consumer, against a plain publish; its CPU against raw MQTT; rates of rewriting.

Payloads of 200 bytes. Every write is durable before it is delivered. Each message of the CPU row is acknowledged before the
next one of its consumer is written. Draining is compared with the same number of entries of fanout queues.
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
FIRST_CONSUMER, FIRST_VEHICLE = 100_000, 200_000  # numbers of those that come online later
LIGHT_CONSUMERS, EACH_DRAINED = 20, 20


def run(size: Size) -> list[Row]:
    """Measure on one platform; memory on a Redis of its own."""
    consumers, coming = size.pick(full=500, small=10), size.pick(full=5_000, small=10)
    writes = size.pick(full=50_000, small=100)
    rows: list[Row] = []
    with platform() as ground:
        took, plain = _ecq_writes.latencies_ms(ground, LIGHT_CONSUMERS, size.pick(full=400, small=100))
        for name, mine, theirs in (("p50", p50(took), p50(plain)), ("p99", percentile(took, 0.99), percentile(plain, 0.99))):
            rows.append(Row(f"write → consumer, {name}", f"{mine:.2f} ms", PLAIN, mine / theirs, mine))
        with fleet(ground.settings.mqtt, ecq_filter, vin) as road:
            road.connect(0, consumers)
            cost = _ecq_writes.write_and_deliver(ground, road, consumers, writes)
            drained = _ecq_writes.come_and_drain(ground, road, FIRST_CONSUMER, coming, EACH_DRAINED)
        with fleet(ground.settings.mqtt, partial(request_filter, ground.settings.topic_prefix), vin) as road:
            fanout = come_and_drain(ground, road, FIRST_VEHICLE, coming, EACH_DRAINED)
            raw = _raw_mqtt.measure(ground, road, ground.settings.mqtt, min(consumers, coming), writes, _vehicle)
        rates = _ecq_writes.rewrite_one_key(ground, size.pick(full=100_000, small=1_000))
    both, count = cost.cpu_us["dispatcher"] + cost.cpu_us["recorder"], coming * EACH_DRAINED
    parts = ", ".join(f"{kind} {us:.0f}" for kind, us in cost.cpu_us.items())
    rows += [
        Row("write and deliver, CPU of dispatcher and recorder", f"{both:.0f} µs", RAW, both / raw.cpu_us, both),
        Row("write and deliver", f"{cost.rate:,.0f}/s; CPU: {parts} µs"),
        Row(f"{count:,} messages drained", f"{drained.rate:,.0f}/s", "fanout queues", drained.rate / fanout.rate),
        Row("one key rewritten, last tenth", f"{rates[-1]:,.0f}/s", "its first tenth", rates[-1] / rates[0]),
        Row("one key rewritten, slowest tenth", f"{min(rates):,.0f}/s", "its first tenth", min(rates) / rates[0]),
    ]
    for each in (100, 10):
        used = bytes_a_live_key(size.pick(full=1_000, small=10), each)
        rows.append(Row(f"Redis, a live key of {each}, with 200 bytes", f"{used:.0f} B", value=used))
    return rows


def _vehicle(number: int) -> str:
    return vin(FIRST_VEHICLE + number)
