"""What a fleet needs: `python -m infra.capacity` multiplies measured unit costs by the size of a fleet. It measures nothing.

docs/scale.md shows the table of needs and the table of costs; `python -m benchmarks` measures most of these costs.
"""

import argparse
import sys
from dataclasses import dataclass
from math import ceil

FLEETS = (1_000_000, 10_000_000, 100_000_000)
DAY_S = 86_400
FILLED = 0.6  # of a core; the rest absorbs what a mean hides
REDIS_GIB = 12  # of one master, so that its copy to disk and to a replica stays short
SPARE = 2  # of Redis' memory: a rewrite of its file copies what changes meanwhile


@dataclass(frozen=True, slots=True)
class Cost:
    """A unit cost measured on two cores."""

    value: float
    unit: str
    what: str
    measured: str  # date


DISPATCHER_US = Cost(89, "µs of CPU", "a delivery after a wake-up: dispatcher", "2026-11-21")
REDIS_US = Cost(75, "µs of CPU", "a delivery after a wake-up: Redis", "2026-11-21")
RECORDER_US = Cost(19, "µs of CPU", "a delivery after a wake-up: recorder", "2026-11-21")
SANDBOX_US = Cost(134, "µs of CPU", "a delivery after a wake-up: event tap and Mosquitto", "2026-11-21")
HEARTBEAT_US = Cost(28, "µs of CPU", "a heartbeat with nothing pending: dispatcher", "2026-11-21")
HEARTBEAT_REDIS_US = Cost(20, "µs of CPU", "a heartbeat with nothing pending: Redis", "2026-11-22")
EMQX_US = Cost(272, "µs of CPU", "a delivery: EMQX 5.8.9, with Manifold's rules", "2026-11-23")
DOOR_US = Cost(210, "µs of CPU", "a signal: the AMQP door", "2026-11-23")
RABBITMQ_US = Cost(271, "µs of CPU", "a signal: RabbitMQ", "2026-11-23")
ENTRY_B = Cost(121, "B in Redis", "a vehicle with one entry", "2026-11-21")
SEEN_B = Cost(231, "B in Redis", "a vehicle's presence", "2026-11-22")
ARCHIVE_B = Cost(19.8, "B", "a delivery in the archive", "2026-11-23")
# From the smallest and the largest of three runs: what each delivery adds to the lake, and what a run adds, however small.
LAKE_B = Cost(6.1, "B", "a delivery in the lake", "2026-11-23")
RUN_B = Cost(444_500, "B", "a run in the lake", "2026-11-23")
ROWS_S = Cost(518_296, "rows/s", "a run written, judged and published by Spark on two cores", "2026-11-23")
COSTS = (
    DISPATCHER_US,
    REDIS_US,
    RECORDER_US,
    SANDBOX_US,
    HEARTBEAT_US,
    HEARTBEAT_REDIS_US,
    EMQX_US,
    DOOR_US,
    RABBITMQ_US,
    ENTRY_B,
    SEEN_B,
    ARCHIVE_B,
    LAKE_B,
    RUN_B,
    ROWS_S,
)
REACHED = Cost(4_978, "deliveries/s", "each after a wake-up, on two cores, all processes together", "2026-11-21")
PROCESSES = ("dispatcher", "Redis", "recorder", "door")  # each uses one core: a second core does not help
CORES = 2  # of the machine on which they were measured
ARCHIVE_DAYS = 400  # the setting `archive_retention_days`
LAKE_DAYS = 365  # the lake keeps everything by default: one year
RUNS_PER_DAY, RUN_DAYS = 288, 3  # the settings `ingest_schedule` and `snapshot_retention_days`: compaction removed older files


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet and its traffic. All but the size are assumptions; replace them with your own figures."""

    vehicles: int
    online: float = 0.3  # share connected at the same time
    deliveries_a_day: float = 10  # for each vehicle
    peak: float = 5  # busiest rate, as a multiple of the mean
    heartbeat_s: float = 300  # between two heartbeats of one vehicle
    signals_a_day: float = 10  # for each vehicle, over AMQP


@dataclass(frozen=True, slots=True)
class Need:
    """What a fleet needs: peak rates, processes of one core, memory, Spark core hours, storage."""

    deliveries_s: float
    heartbeats_s: float
    dispatchers: int
    redis_gib: float
    redis_masters: int
    recorders: int
    spark_core_hours_a_day: float
    emqx_cores: int  # for deliveries alone
    doors: int
    rabbitmq_cores: int
    archive_gib: float
    lake_gib: float
    first: str  # the process that saturates first if there is one of each, and how full it is


def need(fleet: Fleet) -> Need:
    """Multiply the costs. EMQX's cost of a connection and of a heartbeat is not included, because it was not measured."""
    deliveries = fleet.vehicles * fleet.deliveries_a_day / DAY_S * fleet.peak
    heartbeats = fleet.vehicles * fleet.online / fleet.heartbeat_s
    signals = fleet.vehicles * fleet.signals_a_day / DAY_S * fleet.peak
    cores = {
        "dispatcher": (deliveries * DISPATCHER_US.value + heartbeats * HEARTBEAT_US.value) / 1e6,
        "Redis": (deliveries * REDIS_US.value + heartbeats * HEARTBEAT_REDIS_US.value) / 1e6,
        "recorder": deliveries * RECORDER_US.value / 1e6,
        "EMQX": deliveries * EMQX_US.value / 1e6,
        "door": signals * DOOR_US.value / 1e6,
        "RabbitMQ": signals * RABBITMQ_US.value / 1e6,
    }
    gib = fleet.vehicles * (ENTRY_B.value + SEEN_B.value) * SPARE / 2**30
    first = max(PROCESSES, key=lambda name: cores[name])
    a_day = fleet.vehicles * fleet.deliveries_a_day / 2**30
    rows = fleet.vehicles * fleet.deliveries_a_day * 2  # the entry and its outcome
    return Need(
        deliveries_s=deliveries,
        heartbeats_s=heartbeats,
        dispatchers=ceil(cores["dispatcher"] / FILLED),
        redis_gib=gib,
        redis_masters=max(ceil(cores["Redis"] / FILLED), ceil(gib / REDIS_GIB)),
        recorders=ceil(cores["recorder"] / FILLED),
        spark_core_hours_a_day=rows / ROWS_S.value * CORES / 3600,
        emqx_cores=ceil(cores["EMQX"] / FILLED),
        doors=ceil(cores["door"] / FILLED),
        rabbitmq_cores=ceil(cores["RabbitMQ"] / FILLED),
        archive_gib=a_day * ARCHIVE_B.value * ARCHIVE_DAYS,
        lake_gib=a_day * LAKE_B.value * LAKE_DAYS + RUN_B.value * RUNS_PER_DAY * RUN_DAYS / 2**30,
        first=f"{first}, {cores[first]:.0%}",
    )


def lake_bytes(deliveries: int) -> float:
    """Bytes in the lake for each delivery, if one run ingests this many."""
    return LAKE_B.value + RUN_B.value / deliveries


def predicted_s() -> float:
    """Deliveries a second on the machine of the measurements, whose cores all processes share."""
    return CORES * 1e6 / sum(cost.value for cost in (DISPATCHER_US, REDIS_US, RECORDER_US, SANDBOX_US))


def table(fleets: list[Fleet]) -> str:
    """The needs as a Markdown table, one column for each fleet."""
    needs = [need(fleet) for fleet in fleets]
    rows = {
        "deliveries a second, at the peak": [f"{each.deliveries_s:,.0f}" for each in needs],
        "heartbeats a second": [f"{each.heartbeats_s:,.0f}" for each in needs],
        "dispatchers": [str(each.dispatchers) for each in needs],
        "Redis masters": [str(each.redis_masters) for each in needs],
        "Redis, memory of all": [f"{each.redis_gib:.1f} GiB" for each in needs],
        "recorders": [str(each.recorders) for each in needs],
        "EMQX, cores for deliveries": [str(each.emqx_cores) for each in needs],
        "doors for signals": [str(each.doors) for each in needs],
        "RabbitMQ, cores": [str(each.rabbitmq_cores) for each in needs],
        f"archive of {ARCHIVE_DAYS} days": [f"{each.archive_gib:,.0f} GiB" for each in needs],
        f"lake after {LAKE_DAYS} days": [f"{each.lake_gib:,.0f} GiB" for each in needs],
        "Spark, core hours a day": [f"{each.spark_core_hours_a_day:.2f}" for each in needs],
        "full first, with one of each": [each.first for each in needs],
    }
    head = ["vehicles", *(f"{fleet.vehicles:,}" for fleet in fleets)]
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def costs_table() -> str:
    """The unit costs as a Markdown table."""
    lines = [f"| {cost.what} | {cost.value:,.9g} {cost.unit} | {cost.measured} |" for cost in (*COSTS, REACHED)]
    return "\n".join(["| what | cost | measured |", "| --- | --- | --- |", *lines])


def main() -> int:
    """Print the needs of the usual fleets, or of fleets of the given sizes."""
    usual = Fleet(0)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vehicles", type=int, nargs="+", default=list(FLEETS))
    for name in ("online", "deliveries_a_day", "peak", "heartbeat_s", "signals_a_day"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(usual, name))
    given = parser.parse_args()
    more = (given.online, given.deliveries_a_day, given.peak, given.heartbeat_s, given.signals_a_day)
    sys.stdout.write(table([Fleet(size, *more) for size in given.vehicles]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
