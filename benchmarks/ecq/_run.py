"""The whole run: each part on the same platform, one after the other."""

import statistics
from dataclasses import dataclass
from functools import partial

from benchmarks.dispatch._fleet import fleet
from benchmarks.dispatch._ground import platform, vin
from benchmarks.dispatch._rates import come_and_drain as drain_fanout
from benchmarks.ecq import _writes
from benchmarks.ecq._memory import bytes_a_live_key
from benchmarks.latency import percentile
from benchmarks.machine import Row
from benchmarks.size import Scaled, full
from manifold.contracts.topics import ecq_filter, request_filter

SETTING = (
    "payloads of 200 bytes; {size.rounds} writes one at a time; {size.writes:,} writes to {size.consumers} consumers; one key "
    "rewritten {size.rewrites:,} times; {size.owners:,} clients with {size.each} keys; {size.drained:,} consumers drained"
)
EACH_DRAINED = 20
LIGHT_CONSUMERS = 20


@dataclass(frozen=True)
class Size(Scaled):
    """How much of everything."""

    rounds: int = full(400, least=100)
    writes: int = full(50_000, least=10)
    consumers: int = full(500, least=10)
    rewrites: int = full(100_000, least=1000)
    owners: int = full(1_000, least=10)
    each: int = full(100, least=100)
    drained: int = full(5_000, least=10)


def run(size: Size) -> list[Row]:
    """All parts."""
    rows: list[Row] = []
    with platform() as ground:
        writes, plain = _writes.latencies_ms(ground, LIGHT_CONSUMERS, size.rounds)
        p50, base = statistics.median(writes), statistics.median(plain)
        rows += [
            Row("write → consumer, p50", f"{p50:.2f} ms", f"{p50 / base:.1f} × a plain publish", "≤ 3 ms", p50 <= 3),
            Row("write → consumer, p99", f"{percentile(writes, 0.99):.2f} ms"),
            Row("a plain publish, p50", f"{base:.2f} ms", "1.0 ×"),
        ]
        with fleet(ground.settings.mqtt, ecq_filter, vin) as consumers:
            consumers.connect(0, size.consumers)
            writes_of_all = size.writes // size.consumers * size.consumers
            cost = _writes.write_and_deliver(ground, consumers, size.consumers, writes_of_all)
            both = cost.cpu_us["dispatcher"] + cost.cpu_us["recorder"]
            parts = ", ".join(f"{kind} {us:.0f}" for kind, us in cost.cpu_us.items())
            rows += [
                Row(
                    "write and deliver, CPU of dispatcher and recorder",
                    f"{both:.0f} µs",
                    f"{both / 176:.2f} × 176 µs",
                    "≤ 150 µs",
                    both <= 150,
                ),
                Row("write and deliver, rate; CPU by process", f"{cost.rate:,.0f}/s; {parts} µs"),
            ]
            drained = _writes.come_and_drain(ground, consumers, 100_000, size.drained, EACH_DRAINED)
            took = size.drained * EACH_DRAINED / drained.rate
            rows.append(Row(f"{size.drained * EACH_DRAINED:,} messages drained", f"{took:.1f} s", f"{drained.rate:,.0f}/s"))
        with fleet(ground.settings.mqtt, partial(request_filter, ground.settings.topic_prefix), vin) as vehicles:
            beside = drain_fanout(ground, vehicles, 200_000, size.drained, EACH_DRAINED)
            rows.append(
                Row("the same of fanout queues", f"{size.drained * EACH_DRAINED / beside.rate:.1f} s", f"{beside.rate:,.0f}/s")
            )
        rates = _writes.rewrite_one_key(ground, size.rewrites)
        kept = rates[-1] / rates[0]
        rows += [
            Row("one key rewritten: last tenth of the first", f"{rates[-1]:,.0f}/s", f"{kept:.2f}", "≥ 0.9", kept >= 0.9),
            Row("one key rewritten: slowest tenth", f"{min(rates):,.0f}/s", f"{min(rates) / rates[0]:.2f}"),
        ]
    memory, of_ten = bytes_a_live_key(size.owners, size.each), bytes_a_live_key(size.owners, 10)
    rows += [
        Row(
            "Redis, a live key of a hundred, all told", f"{memory:.0f} B", f"{memory / 392:.2f} × 392 B", "≤ 450 B", memory <= 450
        ),
        Row("Redis, a live key of ten, all told", f"{of_ten:.0f} B", f"{of_ten / 392:.2f} × 392 B", "≤ 450 B", of_ten <= 450),
    ]
    return rows
