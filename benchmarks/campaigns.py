"""Cost of a campaign in the campaigner's logic, from a list of targets to the last outcome, against fixed limits.

One process handles a million targets in two waves and three zones; one target of a hundred fails. There are no connections to
other services. At the end, the job of the DAG `campaign_targets` reads the same list from a file and records it, beside an
embedded platform.
"""

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._measure import Row, Size, at_most
from benchmarks._servers import sandbox
from manifold.campaigns import Campaign, Policy, fold, step
from manifold.campaigns.facts import Ended, Ending, Fact, Recorded, Released
from manifold.campaigns.forecast import forecast
from manifold.campaigns.proposals import LISTS
from manifold.campaigns.quantities import instant_ms
from manifold.campaigns.standing import Status
from manifold.campaigns.step import Decide, Release
from manifold.campaigns.verification import verify
from manifold.contracts import campaigns as r
from manifold.contracts.seq import SeqSource
from manifold.messaging.publisher import Publisher
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings

RESOLVED = "list resolved, judged and recorded, with Spark's start"
AIMS = {
    RESOLVED: at_most(90, "s"),
    "list recorded, drawn into waves, approved": at_most(90, "s"),
    "outcomes of all folded": at_most(20, "s"),
    "one outcome folded, and rules judged": at_most(5, "s"),
    "restart: all releases and outcomes folded": at_most(20, "s"),
}
MiB = 1 << 20
NAME, NOW = "bench", instant_ms("2026-12-01T12:00:00Z")
PLAN = {
    "campaign": NAME,
    "data_id": "map_47",
    "targets": {"file": "list.parquet"},
    "waves": [
        {"name": "canary", "size": "1%", "gate": {"released": "80%", "known": "95%"}},
        {"name": "rest", "size": "rest"},
    ],
    "window": {"from": "22:00", "to": "21:59", "else": "Europe/Berlin"},
    "rules": [{"name": "r1", "count": ["failed"], "over": "2%", "in": "24h", "at_least": 1000}],
    "ends": "2027-01-20T00:00:00Z",
}
HOUR_MS = 3_600_000
# Milliseconds for which vehicles are absent, of a sample for the forecast; None: the vehicle does not return.
ABSENCES = [number * HOUR_MS // 20 for number in range(900)] + [None] * 10
P = ParamSpec("P")
T = TypeVar("T")


def run(size: Size) -> list[Row]:
    """Measure the life of a campaign in memory, then the recording of its list by the job."""
    targets = size.pick(full=1_000_000, small=10_000)
    return [*Bench(targets).run(), _resolved(targets)]


class Bench:
    """Takes a campaign through its life, and measures each part."""

    def __init__(self, targets: int) -> None:
        self._targets, self._clock_ms = targets, NOW
        self._seqs, self._policy = SeqSource(0, clock_ms=lambda: self._clock_ms), Policy()
        self._zones = ("Europe/Berlin", "Asia/Tokyo", None)
        self.rows: list[Row] = []

    def run(self) -> list[Row]:
        """Propose the campaign, release all targets, fold all outcomes, and let a rule trip."""
        vins = _vins(self._targets)
        targets = [r.Target(vin, self._zones[index % 3]) for index, vin in enumerate(vins)]
        memory_before = _memory()
        campaign, took = _timed(self._proposed, targets)
        self._row("list recorded, drawn into waves, approved", took)
        draws = partial(forecast, draws=20)
        _, took = _timed(draws, campaign, ABSENCES, self._policy, NOW)
        self._row("forecast of 20 draws", took)
        online = set(vins)
        campaign, took = self._released(campaign, online)
        self._row("all released: two waves, with the facts folded", took)
        facts = [Ended(self._seqs.next(), vin, self._release_of[vin], self._ending(vin)) for vin in online]
        campaign, took = _timed(fold, campaign, facts)
        self._row("outcomes of all folded", took)
        self._record += facts
        self.rows.append(Row("memory of state and facts, beside the list", f"{(_memory() - memory_before) / MiB:,.0f} MiB"))
        assert campaign.total(Status.DELIVERED, Status.FAILED) == self._targets
        vin = next(iter(online))
        fact = Ended(self._seqs.next(), vin, self._release_of[vin], Ending.FAILED)
        folded, took = _timed(fold, campaign, [fact])
        _, judging_took = _timed(step, folded, self._clock_ms, online, self._policy)
        self._row("one outcome folded, and rules judged", took + judging_took)
        _, took = _timed(fold, Campaign(), self._record)
        self._row("restart: all releases and outcomes folded", took)
        errors, took = _timed(verify, self._record)
        if errors:
            raise RuntimeError(f"the record of the benchmark is false: {errors[0]}")
        self._row("the same verified", took)
        return self.rows

    def _proposed(self, targets: list[r.Target]) -> Campaign:
        """Return the campaign after its plan and targets were recorded, it was approved, and its first wave was opened."""
        parts = [tuple(targets[first : first + r.MAX_TARGETS]) for first in range(0, len(targets), r.MAX_TARGETS)]
        commands: list[r.Command] = [
            r.Propose(NAME, "author", plan=PLAN),
            *(r.AddTargets(NAME, "author", targets=part) for part in parts),
            r.Approve(NAME, "ann"),
            r.Start(NAME, self._policy.by),
        ]
        self._record: list[Fact] = [Recorded(self._seqs.next(), command) for command in commands]
        campaign = Campaign()
        for fact in self._record:  # fold each fact by itself, as the recorder delivers them
            campaign = fold(campaign, [fact])
        return campaign

    def _released(self, campaign: Campaign, online: set[str]) -> tuple[Campaign, float]:
        """Release both waves; return the campaign and the seconds that this took.

        When a step has no effects, the campaign waits for the gate of the first wave: record the outcomes of all releases so far.
        """
        self._release_of: dict[str, int] = {}
        took = 0.0
        while campaign.total(Status.WAITING):
            self._clock_ms += 1000
            effects, seconds = _timed(step, campaign, self._clock_ms, online, self._policy)
            took += seconds
            facts: list[Fact] = []
            for effect in effects:
                if isinstance(effect, Decide):
                    facts.append(Recorded(self._seqs.next(), effect.command))
                elif isinstance(effect, Release):
                    facts.append(Released(self._seqs.next(), effect.wave, effect.step, effect.vins, effect.until_ms))
                    self._release_of |= dict.fromkeys(effect.vins, facts[-1].seq)
            if not facts:
                facts = [Ended(self._seqs.next(), vin, seq, self._ending(vin)) for vin, seq in self._release_of.items()]
            self._record += facts
            campaign, seconds = _timed(fold, campaign, facts)
            took += seconds
        return campaign, took

    def _ending(self, vin: str) -> Ending:
        return Ending.FAILED if vin.endswith("00") else Ending.DELIVERED

    def _row(self, what: str, took_s: float) -> None:
        figure = f"{took_s:.2f} s, {took_s / self._targets * 1e6:.2f} µs a target"
        self.rows.append(Row(what, figure, value=took_s))


def _resolved(targets: int) -> Row:
    """Measure the job that reads a list of targets from a file and records it."""
    with sandbox() as settings:
        folder = settings.home / "archive" / LISTS
        folder.mkdir(parents=True, exist_ok=True)
        zones = pa.array(["Europe/Berlin"] * targets)
        pq.write_table(pa.table({"vin": _vins(targets), "zone": zones}), folder / "list.parquet")
        asyncio.run(_propose(settings))
        command = [sys.executable, "-m", "pipelines", "campaign_targets", f"--campaign={NAME}", "--by=bench", "--run-id=bench"]
        run = partial(subprocess.run, env=environment(settings), capture_output=True, text=True, check=False)
        result, took = _timed(run, command)
    if result.returncode or f'"targets": {targets}' not in result.stdout:
        raise RuntimeError(f"the list was not recorded: {result.stdout}{result.stderr}")
    return Row(RESOLVED, f"{took:.1f} s", value=took)


async def _propose(settings: Settings) -> None:
    async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
        await publisher.order(r.Propose(NAME, "author", plan=PLAN))


def _vins(count: int) -> list[str]:
    return [f"WMANF0LD{number:09}" for number in range(count)]


def _timed(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> tuple[T, float]:
    """Call `work`; return its result, and the seconds that it took."""
    began = time.perf_counter()
    result = work(*arguments, **named)
    return result, time.perf_counter() - began


def _memory() -> int:
    """Return the resident bytes of this process after a garbage collection."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)
