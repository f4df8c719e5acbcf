"""`python -m infra.capacity`: estimates what fleets of different sizes need, from unit costs that were measured before.

docs/guides/scale.md has the table; `--costs` prints the unit costs, most of which `python -m benchmarks` measures.
"""

import argparse
import sys
from dataclasses import dataclass
from math import ceil

FLEETS = (1_000_000, 10_000_000, 100_000_000)
DAY_S = 86_400
MAX_CORE_LOAD = 0.6  # planned mean load of a core; the rest is for bursts
MAX_REDIS_GIB = 12  # memory of one master; with more, its copies to disk and to a replica would take long
REDIS_MEMORY_FACTOR = 2  # Redis needs memory for copies of the pages that change while it rewrites its file


@dataclass(frozen=True, slots=True)
class Cost:
    """A unit cost measured on two cores."""

    value: float
    unit: str
    what: str
    measured: str  # date of the measurement


DISPATCHER_US = Cost(89, "µs of CPU", "a delivery after a wake-up: dispatcher", "2026-11-21")
REDIS_US = Cost(75, "µs of CPU", "a delivery after a wake-up: Redis", "2026-11-21")
RECORDER_US = Cost(19, "µs of CPU", "a delivery after a wake-up: recorder", "2026-11-21")
SANDBOX_US = Cost(134, "µs of CPU", "a delivery after a wake-up: event tap and Mosquitto", "2026-11-21")
HEARTBEAT_US = Cost(28, "µs of CPU", "a heartbeat with nothing pending: dispatcher", "2026-11-21")
HEARTBEAT_REDIS_US = Cost(20, "µs of CPU", "a heartbeat with nothing pending: Redis", "2026-11-22")
EMQX_US = Cost(272, "µs of CPU", "a delivery: EMQX 5.8.9, with Manifold's rules", "2026-11-23")
DOOR_US = Cost(337, "µs of CPU", "a signal: the AMQP door", "2026-11-27")
RABBITMQ_US = Cost(243, "µs of CPU", "a signal: RabbitMQ", "2026-11-27")
ENTRY_B = Cost(121, "B in Redis", "a vehicle with one entry", "2026-11-21")
SEEN_B = Cost(231, "B in Redis", "a vehicle's presence", "2026-11-22")
ARCHIVE_B = Cost(19.8, "B", "a delivery in the archive", "2026-11-23")
# Bytes that each delivery adds to the lake, and that each run adds in any case; from the smallest and the largest of three runs.
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
SINGLE_CORE_PROCESSES = ("dispatcher", "Redis", "recorder", "door")  # such a process cannot use a second core
CORES = 2  # of the machine of the measurements
ARCHIVE_DAYS = 400  # the setting `archive_retention_days`
LAKE_DAYS = 365  # by default the lake keeps all rows; the table has the size after one year
# The settings `ingest_schedule` and `snapshot_retention_days`. The files of older runs are compacted, and removed.
RUNS_PER_DAY, RUN_DAYS = 288, 3


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet and its traffic. The defaults are assumptions; replace them with your own figures."""

    vehicles: int
    online: float = 0.3  # share of the vehicles that are connected at the same time
    deliveries_a_day: float = 10  # for each vehicle
    peak: float = 5  # the highest rate, as a multiple of the mean rate
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
    emqx_cores: int  # for deliveries only
    doors: int
    rabbitmq_cores: int
    archive_gib: float
    lake_gib: float
    first: str  # the process that saturates first if there is one process of each kind, and the load of its core


def need(fleet: Fleet) -> Need:
    """Return what a fleet needs. EMQX's costs of connections and heartbeats are not included, because they were not measured."""
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
    redis_gib = fleet.vehicles * (ENTRY_B.value + SEEN_B.value) * REDIS_MEMORY_FACTOR / 2**30
    first = max(SINGLE_CORE_PROCESSES, key=lambda name: cores[name])
    deliveries_a_day = fleet.vehicles * fleet.deliveries_a_day
    rows_a_day = deliveries_a_day * 2  # the entry and its outcome
    archive_bytes = deliveries_a_day * ARCHIVE_B.value * ARCHIVE_DAYS
    lake_rows_bytes = deliveries_a_day * LAKE_B.value * LAKE_DAYS
    lake_runs_bytes = RUN_B.value * RUNS_PER_DAY * RUN_DAYS
    return Need(
        deliveries_s=deliveries,
        heartbeats_s=heartbeats,
        dispatchers=ceil(cores["dispatcher"] / MAX_CORE_LOAD),
        redis_gib=redis_gib,
        redis_masters=max(ceil(cores["Redis"] / MAX_CORE_LOAD), ceil(redis_gib / MAX_REDIS_GIB)),
        recorders=ceil(cores["recorder"] / MAX_CORE_LOAD),
        spark_core_hours_a_day=rows_a_day / ROWS_S.value * CORES / 3600,
        emqx_cores=ceil(cores["EMQX"] / MAX_CORE_LOAD),
        doors=ceil(cores["door"] / MAX_CORE_LOAD),
        rabbitmq_cores=ceil(cores["RabbitMQ"] / MAX_CORE_LOAD),
        archive_gib=archive_bytes / 2**30,
        lake_gib=(lake_rows_bytes + lake_runs_bytes) / 2**30,
        first=f"{first}, {cores[first]:.0%}",
    )


def lake_bytes(deliveries: int) -> float:
    """Return the bytes in the lake for each delivery, if one run ingests this number of deliveries."""
    return LAKE_B.value + RUN_B.value / deliveries


def predicted_s() -> float:
    """Return the estimated deliveries per second on the machine of the measurements, if all processes share its cores."""
    return CORES * 1e6 / sum(cost.value for cost in (DISPATCHER_US, REDIS_US, RECORDER_US, SANDBOX_US))


def table(fleets: list[Fleet]) -> str:
    """Return the needs as a Markdown table with a column for each fleet."""
    needs = [need(fleet) for fleet in fleets]
    rows = {
        "deliveries a second, at the peak": [f"{fleet_need.deliveries_s:,.0f}" for fleet_need in needs],
        "heartbeats a second": [f"{fleet_need.heartbeats_s:,.0f}" for fleet_need in needs],
        "dispatchers": [str(fleet_need.dispatchers) for fleet_need in needs],
        "Redis masters": [str(fleet_need.redis_masters) for fleet_need in needs],
        "Redis, memory of all": [f"{fleet_need.redis_gib:.1f} GiB" for fleet_need in needs],
        "recorders": [str(fleet_need.recorders) for fleet_need in needs],
        "EMQX, cores for deliveries": [str(fleet_need.emqx_cores) for fleet_need in needs],
        "doors for signals": [str(fleet_need.doors) for fleet_need in needs],
        "RabbitMQ, cores": [str(fleet_need.rabbitmq_cores) for fleet_need in needs],
        f"archive of {ARCHIVE_DAYS} days": [f"{fleet_need.archive_gib:,.0f} GiB" for fleet_need in needs],
        f"lake after {LAKE_DAYS} days": [f"{fleet_need.lake_gib:,.0f} GiB" for fleet_need in needs],
        "Spark, core hours a day": [f"{fleet_need.spark_core_hours_a_day:.2f}" for fleet_need in needs],
        "full first, with one of each": [fleet_need.first for fleet_need in needs],
    }
    head = ["vehicles", *(f"{fleet.vehicles:,}" for fleet in fleets)]
    rule = ["---"] * len(head)
    body = [[name, *cells] for name, cells in rows.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body))


def costs_table() -> str:
    """Return the unit costs as a Markdown table."""
    lines = [f"| {cost.what} | {cost.value:,.9g} {cost.unit} | {cost.measured} |" for cost in (*COSTS, REACHED)]
    return "\n".join(["| what | cost | measured |", "| --- | --- | --- |", *lines])


def main() -> int:
    """Print what the fleets in FLEETS need, or fleets with the sizes and the traffic in the arguments; or the unit costs."""
    defaults = Fleet(vehicles=0)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vehicles", type=int, nargs="+", default=list(FLEETS))
    traffic_fields = ("online", "deliveries_a_day", "peak", "heartbeat_s", "signals_a_day")
    for name in traffic_fields:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(defaults, name))
    parser.add_argument("--costs", action="store_true", help="print the unit costs instead")
    arguments = parser.parse_args()
    if arguments.costs:
        sys.stdout.write(costs_table() + "\n")
        return 0
    traffic = {name: getattr(arguments, name) for name in traffic_fields}
    sys.stdout.write(table([Fleet(vehicles, **traffic) for vehicles in arguments.vehicles]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
