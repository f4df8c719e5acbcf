"""Common parts of all benchmarks: sizes, costs by the clock and by CPU, rows that compare with a rival, and aims."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import ParamSpec, TypeVar

import psutil

P = ParamSpec("P")
N = TypeVar("N", int, float)
GIB = 1 << 30


class Size(StrEnum):
    """The amount of work in a run. A small run shows that a benchmark works; aims apply to full runs only."""

    SMALL = "small"
    FULL = "full"

    def pick(self, *, full: N, small: N) -> N:
        """Return the count for this size."""
        return full if self is Size.FULL else small


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound for the value of a row."""

    limit: float
    unit: str
    is_lower_bound: bool

    def is_met(self, value: float) -> bool:
        """Whether `value`, in the aim's unit, is within the bound."""
        return value >= self.limit if self.is_lower_bound else value <= self.limit

    def __str__(self) -> str:
        unit = self.unit if self.unit.startswith("/") else f" {self.unit}".rstrip()
        return f"{'≥' if self.is_lower_bound else '≤'} {self.limit:,.9g}{unit}"


def at_least(limit: float, unit: str = "") -> Aim:
    """Return an aim that larger values meet; without a unit it bounds a row's ratio."""
    return Aim(limit, unit, is_lower_bound=True)


def at_most(limit: float, unit: str = "") -> Aim:
    """Return an aim that smaller values meet; without a unit it bounds a row's ratio."""
    return Aim(limit, unit, is_lower_bound=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a benchmark.

    `rival` names the rival or limit that was measured in the same run, and `ratio` is the figure divided by that of the rival. An
    aim bounds `value`, or the ratio if there is no value.
    """

    what: str
    figure: str  # with its unit
    rival: str = ""
    ratio: float | None = None
    value: float | None = None

    def is_met(self, aim: Aim) -> bool:
        """Whether the row meets its aim."""
        value = self.ratio if self.value is None else self.value
        assert value is not None, f"{self.what}: a row with an aim has a value"
        return aim.is_met(value)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by the clock, and CPU seconds (user and system) of this process and all its children."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


def cost_of(work: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> Cost:
    """Run `work` and return its cost, which includes Spark's JVM and workers: they are children of this process."""
    began, cpu_before_s = time.perf_counter(), _cpu_s()
    work(*arguments, **named)
    return Cost(time.perf_counter() - began, _cpu_s() - cpu_before_s)


def _cpu_s() -> float:
    """Return the CPU seconds of this process, its children, and children that have ended."""
    own_process = psutil.Process()
    total = 0.0
    for process in (own_process, *own_process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and user and system of children that were waited for
    return total


def speeds(what: str, count: int, unit: str, cost: Cost, rival: str, rival_cost: Cost) -> list[Row]:
    """Return rows for the speed of `count` units of work: by the clock and by CPU, as a share of the rival's speed."""
    return [
        Row(f"{what}, by the clock", f"{count / cost.wall_s:,.0f} {unit}/s", rival, rival_cost.wall_s / cost.wall_s),
        Row(f"{what}, by CPU", f"{count / cost.cpu_s:,.0f} {unit} a CPU second", rival, rival_cost.cpu_s / cost.cpu_s),
    ]


def multiples(what: str, cost: Cost, rival: str, rival_cost: Cost, times: int = 1) -> list[Row]:
    """Return rows for the mean cost of work, by the clock and by CPU, as a multiple of the rival's cost.

    `cost` and `rival_cost` are the total costs of doing the work `times` times.
    """
    return [
        Row(f"{what}, by the clock", f"{cost.wall_s / times:.2f} s", rival, cost.wall_s / rival_cost.wall_s),
        Row(f"{what}, by CPU", f"{cost.cpu_s / times:.2f} s of CPU", rival, cost.cpu_s / max(rival_cost.cpu_s, 1e-9)),
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def p50(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def machine() -> str:
    """Return cores, memory and kernel of this machine."""
    memory = psutil.virtual_memory().total / GIB
    return f"{psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release().partition('-')[0]}"
