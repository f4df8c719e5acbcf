"""Cost of long lists of one vehicle: thousands parked, each for other data, and thousands that were superseded."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from benchmarks.command import count_of
from benchmarks.dispatch._memory import a_redis
from benchmarks.machine import Row, report
from manifold.contracts.events import Connected
from manifold.contracts.names import Owner
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.queues import Policy, Queues, connect
from manifold.queues.verbs.claims import Claim, Park, UpdatePresence
from manifold.queues.verbs.fills import Enqueue
from manifold.runtime.log import configure_logging
from manifold.settings import load_settings

ENTRIES = 5000
FEW = 500  # for what an entry costs where there are few
SETTING = "{entries:,} entries of one vehicle"
VIN = "BENCH000000000001"
FLAT_AIM, AT_ONCE_AIM_MS = 1.5, 100.0


def run(entries: int) -> list[Row]:
    """Measure with a Redis of its own."""
    few, many = (_measured(count, _late_data) for count in (FEW, entries))
    one_ms = _measured(entries, _one_late)[0] * 1000
    named_ms = _measured(entries, _superseded)[0] * 1000
    flat = many[0] / many[1] / (few[0] / few[1])
    return [
        Row(
            f"data of one of {entries:,} parked entries comes",
            f"{one_ms:.1f} ms",
            "",
            f"≤ {AT_ONCE_AIM_MS:g} ms",
            one_ms <= AT_ONCE_AIM_MS,
        ),
        Row("the data of all comes, one after the other: CPU of Redis and client", f"{many[0]:.2f} s"),
        Row(
            f"… an entry, against where {FEW} are parked",
            f"{many[0] / entries * 1e6:.0f} µs",
            f"{flat:.2f} ×",
            f"≤ {FLAT_AIM}",
            flat <= FLAT_AIM,
        ),
        Row(
            f"a trigger is offered again where {entries:,} are superseded",
            f"{named_ms:.0f} ms",
            "",
            f"≤ {AT_ONCE_AIM_MS:g} ms",
            named_ms <= AT_ONCE_AIM_MS,
        ),
    ]


async def _late_data(queues: Queues, seqs: Sequence[int]) -> float:
    """CPU seconds, of Redis and of this process, until all are pending again: the data of each comes by itself."""
    await _park(queues, seqs)
    began = await _cpu_s(queues)
    for seq in seqs:
        await queues.store_data(f"d{seq}", b"late", wall_clock_ms())
    return await _cpu_s(queues) - began


async def _cpu_s(queues: Queues) -> float:
    info = await queues.redis.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"]) + time.process_time()


async def _one_late(queues: Queues, seqs: Sequence[int]) -> float:
    await _park(queues, seqs)
    began = time.perf_counter()
    await queues.store_data(f"d{seqs[-1]}", b"late", wall_clock_ms())
    return time.perf_counter() - began


async def _superseded(queues: Queues, seqs: Sequence[int]) -> float:
    """Seconds for the newest of them once more; whoever offered it first may have died, so all are named again."""
    queues = Queues(queues.redis, replace(queues.policy, compaction=True))
    now_ms, batch = wall_clock_ms(), queues.batch()
    for seq in seqs:
        batch.add(VIN, Enqueue([(seq, "same")]), now_ms)
    await batch.run()
    began = time.perf_counter()
    batch.add(VIN, Enqueue([(seqs[-1], "same")]), now_ms)
    (result,) = await batch.run()
    took = time.perf_counter() - began
    if len(result.superseded) != len(seqs) - 1:
        raise RuntimeError(f"{len(result.superseded)} of {len(seqs) - 1} were named")
    return took


async def _park(queues: Queues, seqs: Sequence[int]) -> None:
    """As a dispatcher does where the vehicle is here and no data has come."""
    now_ms, batch = wall_clock_ms(), queues.batch()
    batch.add(VIN, UpdatePresence(Connected(Owner(VIN), now_ms, True, 0), False), now_ms)
    for seq in seqs:
        batch.add(VIN, Enqueue([(seq, "r")]), now_ms)
    batch.add(VIN, Claim(), now_ms)
    for seq in seqs:
        batch.add(VIN, Park(seq, f"d{seq}"), now_ms)
    await batch.run()


def _measured(entries: int, work: Callable[[Queues, Sequence[int]], Awaitable[float]]) -> tuple[float, int]:
    """What `work` says of so many entries, and how many they were."""
    source = SeqSource(902)
    seqs = [source.next() for _ in range(entries)]

    async def measure(port: int) -> float:
        async with connect(f"redis://127.0.0.1:{port}") as redis:
            return await work(Queues(redis, Policy.of(load_settings())), seqs)

    with a_redis() as redis:
        return asyncio.run(measure(redis.connection_pool.connection_kwargs["port"])), entries


if __name__ == "__main__":
    configure_logging("benchmark", level="warning")
    size = count_of(__doc__, "entries", ENTRIES)
    report("one_vehicle", SETTING.format(entries=size), run(size))
