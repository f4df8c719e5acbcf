"""What a campaign costs the campaigner, without its edge, against fixed limits: from a list of targets to the last outcome.

A million targets in two waves and three zones, of which one of a hundred fails, in one process on two quiet cores. At last, the
job of the DAG `campaign_targets` takes the same list from a file to its record, beside an embedded platform.
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
HOUR = 3_600_000
ABSENCES = [place * HOUR // 20 for place in range(900)] + [None] * 10
P = ParamSpec("P")
T = TypeVar("T")


def run(size: Size) -> list[Row]:
    """Take a campaign through its life."""
    targets = size.pick(full=1_000_000, small=10_000)
    return [*Bench(targets).run(), _resolved(targets)]


class Bench:
    """A campaign that is taken through its life, and what each part took."""

    def __init__(self, targets: int) -> None:
        self._targets, self._clock_ms = targets, NOW
        self._seqs, self._policy = SeqSource(0, clock_ms=lambda: self._clock_ms), Policy()
        self._zones = ("Europe/Berlin", "Asia/Tokyo", None)
        self.rows: list[Row] = []

    def run(self) -> list[Row]:
        """Propose, release all, hear of all, trip a rule."""
        vins = _vins(self._targets)
        listed = [r.Target(vin, self._zones[place % 3]) for place, vin in enumerate(vins)]
        before = _memory()
        campaign, took = _timed(self._proposed, listed)
        self._row("list recorded, drawn into waves, approved", took)
        draws = partial(forecast, draws=20)
        _, took = _timed(draws, campaign, ABSENCES, self._policy, NOW)
        self._row("forecast of 20 draws", took)
        here = set(vins)
        campaign, took = self._released(campaign, here)
        self._row("all released: two waves, with the facts folded", took)
        facts = [Ended(self._seqs.next(), vin, self._release_of[vin], self._ending(vin)) for vin in here]
        campaign, took = _timed(fold, campaign, facts)
        self._row("outcomes of all folded", took)
        self._record += facts
        self.rows.append(Row("memory of state and facts, beside the list", f"{(_memory() - before) / MiB:,.0f} MiB"))
        assert campaign.total(Status.DELIVERED, Status.FAILED) == self._targets
        one = next(iter(here))
        word = Ended(self._seqs.next(), one, self._release_of[one], Ending.FAILED)
        after, took = _timed(fold, campaign, [word])
        _, judging = _timed(step, after, self._clock_ms, here, self._policy)
        self._row("one outcome folded, and rules judged", took + judging)
        _, took = _timed(fold, Campaign(), self._record)
        self._row("restart: all releases and outcomes folded", took)
        found, took = _timed(verify, self._record)
        if found:
            raise RuntimeError(f"the record of the benchmark is false: {found[0]}")
        self._row("the same verified", took)
        return self.rows

    def _proposed(self, listed: list[r.Target]) -> Campaign:
        parts = [tuple(listed[first : first + r.MAX_TARGETS]) for first in range(0, len(listed), r.MAX_TARGETS)]
        commands: list[r.Command] = [
            r.Propose(NAME, "author", plan=PLAN),
            *(r.AddTargets(NAME, "author", targets=part) for part in parts),
            r.Approve(NAME, "ann"),
            r.Start(NAME, self._policy.by),
        ]
        self._record: list[Fact] = [Recorded(self._seqs.next(), command) for command in commands]
        campaign = Campaign()
        for fact in self._record:  # one by one, as the recorder hands them over
            campaign = fold(campaign, [fact])
        return campaign

    def _released(self, campaign: Campaign, here: set[str]) -> tuple[Campaign, float]:
        """Release both waves; outcomes of the first let its gate pass."""
        self._release_of: dict[str, int] = {}
        took = 0.0
        while campaign.total(Status.WAITING):
            self._clock_ms += 1000
            effects, seconds = _timed(step, campaign, self._clock_ms, here, self._policy)
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
    with sandbox() as settings:
        folder = settings.home / "archive" / LISTS
        folder.mkdir(parents=True, exist_ok=True)
        zones = pa.array(["Europe/Berlin"] * targets)
        pq.write_table(pa.table({"vin": _vins(targets), "zone": zones}), folder / "list.parquet")
        asyncio.run(_propose(settings))
        command = [sys.executable, "-m", "pipelines", "campaign_targets", f"--campaign={NAME}", "--by=bench", "--run-id=bench"]
        run = partial(subprocess.run, env=environment(settings), capture_output=True, text=True, check=False)
        done, took = _timed(run, command)
    if done.returncode or f'"targets": {targets}' not in done.stdout:
        raise RuntimeError(f"the list was not recorded: {done.stdout}{done.stderr}")
    return Row(RESOLVED, f"{took:.1f} s", value=took)


async def _propose(settings: Settings) -> None:
    async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
        await publisher.order(r.Propose(NAME, "author", plan=PLAN))


def _vins(number: int) -> list[str]:
    return [f"WMANF0LD{place:09}" for place in range(number)]


def _timed(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> tuple[T, float]:
    began = time.perf_counter()
    result = work(*arguments, **named)
    return result, time.perf_counter() - began


def _memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
