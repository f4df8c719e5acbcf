"""`python -m benchmarks.capacity`: what a fleet needs, by the unit costs in docs/benchmarks.md. It measures nothing."""

import argparse
import sys
from dataclasses import dataclass
from math import ceil

FLEETS = (1_000_000, 10_000_000, 100_000_000)
DAY_S = 86_400
FILLED = 0.6  # of a core; the rest is for what a mean hides
REDIS_GIB = 12  # of one master, so that its copy to disk and to a replica stays short
SPARE = 2  # of Redis' memory: a rewrite of its file copies what changes meanwhile


@dataclass(frozen=True, slots=True)
class Cost:
    """A measured cost, and the words of docs/benchmarks.md in which it stands."""

    value: float
    source: str


DISPATCHER_US = Cost(89, "| dispatcher CPU a delivery | 89 µs |")
REDIS_US = Cost(75, "| CPU of the others a delivery: tap, broker, Redis, recorder | 84, 50, 75, 19 µs |")
RECORDER_US = Cost(19, REDIS_US.source)
OTHERS_US = Cost(84 + 50 + 75 + 19, REDIS_US.source)
HEARTBEAT_US = Cost(28, "| heartbeats with nothing pending | 15,040/s, 28 µs of dispatcher CPU each |")
HEARTBEAT_REDIS_US = Cost(
    20, "| a heartbeat with nothing pending: dispatcher; Redis | 29, 25 µs; 17, 14 µs | 54, 21 µs; 20, 9 µs |"
)
ENTRY_B = Cost(121, "| Redis, an owner with one entry; an idle owner that was seen (of 1,000,000) | 121 B; 184 B |")
SEEN_B = Cost(231, "| an idle vehicle that was seen, in Redis | 188 B | 231 B: it expires now |")
ROWS_S = Cost(518_296, "| a whole run of 10 M ids, of bare Spark; by CPU | 518,296 rows/s |")  # on two cores
REACHED = Cost(4_978, "| delivered and acknowledged, each woken for | 4,978/s |")  # on two cores, all of it
EMQX_US = Cost(272, "EMQX 5.8.9 took 214 to 272 µs of CPU a delivery")
DOOR_US = Cost(210, "| one door, 18,000 signals of 1 KB | 259; 585; 979/s | 2,420/s | 578; 413; 527 µs; 210 µs |")
RABBITMQ_US = Cost(271, "| RabbitMQ beside one door | | | 416; 257; 365 µs; 271 µs |")
ARCHIVE_B = Cost(19.8, "| archive, a delivery | 19.8, 19.8, 19.8 B |")
# Of the smallest and the largest of three runs: what each delivery leaves in the lake, and what a run does, however small.
LAKE_B = Cost(6.1, "| lake, a delivery | 154.3, 23.2, 7.6 B |")
RUN_B = Cost(444_500, LAKE_B.source)
COSTS = (
    EMQX_US,
    DOOR_US,
    RABBITMQ_US,
    ARCHIVE_B,
    LAKE_B,
    DISPATCHER_US,
    REDIS_US,
    HEARTBEAT_US,
    HEARTBEAT_REDIS_US,
    ENTRY_B,
    SEEN_B,
    ROWS_S,
    REACHED,
)
PROCESSES = ("dispatcher", "Redis", "recorder", "door")  # of one core each: another core does not help them
CORES = 2  # of the machine on which they were measured
ARCHIVE_DAYS = 400  # the setting `archive_retention_days`
LAKE_DAYS = 365  # by default the lake keeps everything: a year of it
RUNS_PER_DAY, RUN_DAYS = (
    288,
    3,
)  # the settings `ingest_schedule` and `snapshot_retention_days`: older small files were packed and let go


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet and what is asked of it. All but its size are assumptions, to be replaced by one's own."""

    vehicles: int
    online: float = 0.3  # the part that is connected at once
    deliveries_a_day: float = 10  # for each vehicle
    peak: float = 5  # the busiest time against the mean
    heartbeat_s: float = 300  # between two of one vehicle
    signals_a_day: float = 10  # of each vehicle's devices, over AMQP


@dataclass(frozen=True, slots=True)
class Need:
    """What a fleet needs: rates at its busiest time, processes of one core, memory, Spark's work, storage."""

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
    first: str  # which is full first where there is one of each, and how full one would be


def need(fleet: Fleet) -> Need:
    """What the costs come to. What EMQX takes for a connection and a heartbeat is not in it, because it was not measured."""
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
    rows = fleet.vehicles * fleet.deliveries_a_day * 2  # the entry, and how it ended
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
    """What each of so many deliveries leaves in the lake, where one run takes them in."""
    return LAKE_B.value + RUN_B.value / deliveries


def predicted_s() -> float:
    """Deliveries a second on the machine of the measurements, where every process shares its cores."""
    return CORES * 1e6 / (DISPATCHER_US.value + OTHERS_US.value)


def table(fleets: list[Fleet]) -> str:
    """The needs as a table in Markdown, a column each."""
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


def main() -> int:
    """Print the table for the usual fleets, or for one of a given size."""
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
