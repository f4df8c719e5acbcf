"""How long a campaign takes, from how long vehicles have stayed away so far: draws of the fleet, each played through the plan."""

import heapq
import random
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import count

from msgspec import Struct

from manifold.campaigns.fold import Campaign
from manifold.campaigns.gates import holds
from manifold.campaigns.plan import Plan
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.step import Policy
from manifold.campaigns.windows import Window, span_at

MAX_DRAWS, MIN_DRAWS = 200, 5
MAX_STEPS = 200_000  # targets times draws; a larger campaign has fewer draws, and needs fewer
MILESTONES = (50, 90, 99)  # per cent of the targets


class Quantiles(Struct, frozen=True):
    """An instant (Unix ms) as a distribution over the draws; None: in that share of draws it never comes."""

    p10: int | None
    p50: int | None
    p90: int | None


class Forecast(Struct, frozen=True):
    """When shares of the targets are delivered, and when the campaign ends."""

    delivered: dict[int, Quantiles]  # milestone in per cent
    end: Quantiles
    never: int  # targets that are not delivered before the plan's end: the median
    draws: int


def forecast(
    campaign: Campaign, absences_ms: Sequence[int | None], policy: Policy, now_ms: int, *, ack_ms: int = 1000, seed: int = 0
) -> Forecast:
    """The forecast of a campaign that starts at `now_ms`.

    `absences_ms` are observed times until a vehicle was seen, None where it was not seen at all. It is assumed that a vehicle
    stays once it has come and acknowledges after `ack_ms`, and that people approve at once.
    """
    plan = campaign.decided.plan
    assert plan is not None
    zone_of = plan.window.zone_of if plan.window is not None else lambda zone: zone or ""
    targets = [(member.wave, zone_of(member.zone)) for member in campaign.members.values()]
    draws = max(MIN_DRAWS, min(MAX_DRAWS, MAX_STEPS // max(1, len(targets))))
    chance, runs = random.Random(seed), list[list[int]]()
    for _ in range(draws):
        absences = chance.choices(absences_ms, k=len(targets))
        coming = [None if absence is None else now_ms + absence for absence in absences]
        arrivals = [(wave, at_ms, zone) for (wave, zone), at_ms in zip(targets, coming, strict=True)]
        runs.append(Draw(plan, arrivals, policy, now_ms, ack_ms).play())
    total = len(targets)
    delivered = {
        percent: _quantiles([run[needed - 1] if len(run) >= (needed := -(-total * percent // 100)) else None for run in runs])
        for percent in MILESTONES
    }
    ends = [run[-1] if len(run) == total else plan.ends_ms for run in runs]
    never = sorted(total - len(run) for run in runs)[draws // 2]
    return Forecast(delivered, _quantiles(ends), never, draws)


class _Event(IntEnum):
    """What happens at an instant, in the order in which the campaigner would see it."""

    ACKNOWLEDGED = 0
    SOAKED = 1  # the gate passes, if its conditions have held all the time
    READY = 2  # a target is here and its window is open
    FREE = 3  # the rate allows a release again


class Draw:
    """One draw of the fleet, played event by event: when each target is delivered."""

    def __init__(
        self, plan: Plan, arrivals: Iterable[tuple[int, int | None, str]], policy: Policy, now_ms: int, ack_ms: int
    ) -> None:
        self._plan, self._ack_ms = plan, ack_ms
        self._openings = _Openings(plan.window, policy, plan.ends_ms)
        self._waves: list[list[tuple[int | None, str]]] = [[] for _ in plan.waves]
        for wave, at_ms, zone in arrivals:
            self._waves[wave].append((at_ms, zone))
        self._counts = [{"targets": len(wave), "released": 0, "known": 0, "success": 0} for wave in self._waves]
        self._events: list[tuple[int, _Event, int, str]] = []
        self._released, self.delivered = list[int](), list[int]()
        self._ready, self._numbers, self._free_ms = list[tuple[int, int, str]](), count(), 0
        self._open(0, max(now_ms, plan.starts_ms))

    def play(self) -> list[int]:
        """The instants of all deliveries before the plan's end, oldest first."""
        while self._events and self._events[0][0] < self._plan.ends_ms:
            at_ms, event, wave, zone = heapq.heappop(self._events)
            match event:
                case _Event.READY:
                    heapq.heappush(self._ready, (wave, next(self._numbers), zone))
                    self._drain(at_ms)
                case _Event.FREE:
                    self._drain(at_ms)
                case _Event.ACKNOWLEDGED:
                    self.delivered.append(at_ms)
                    self._counts[wave]["known"] += 1
                    self._counts[wave]["success"] += 1
                    self._judge(at_ms)
                    self._drain(at_ms)
                case _Event.SOAKED if wave == self._open_wave and at_ms == self._held_since + self._soak_ms:
                    self._open(wave + 1, at_ms)
        return self.delivered

    @property
    def _soak_ms(self) -> int:
        return duration_ms(self._plan.waves[self._open_wave].gate.soak)

    def _open(self, wave: int, now_ms: int) -> None:
        self._open_wave, self._held_since = wave, 0
        for at_ms, zone in self._waves[wave]:
            if at_ms is not None:
                heapq.heappush(self._events, (self._openings.next(zone, max(at_ms, now_ms)), _Event.READY, wave, zone))

    def _drain(self, now_ms: int) -> None:
        """Release targets that are ready, as many as the rate has; those of earlier waves go first."""
        while self._ready:
            per_minute = self._plan.per_minute(len(self.delivered))
            free_ms = self._released[-per_minute] + MINUTE_MS if len(self._released) >= per_minute else now_ms
            if free_ms > now_ms:
                if free_ms != self._free_ms:
                    heapq.heappush(self._events, (free_ms, _Event.FREE, 0, ""))
                    self._free_ms = free_ms
                return
            wave, _, zone = heapq.heappop(self._ready)
            open_ms = self._openings.next(zone, now_ms)
            if open_ms > now_ms:
                heapq.heappush(self._events, (open_ms, _Event.READY, wave, zone))
                continue
            self._released.append(now_ms)
            self._counts[wave]["released"] += 1
            heapq.heappush(self._events, (now_ms + self._ack_ms, _Event.ACKNOWLEDGED, wave, zone))
            self._judge(now_ms)

    def _judge(self, now_ms: int) -> None:
        """Note since when the conditions of the gate hold: a release may break them until it is acknowledged."""
        wave = self._open_wave
        if wave + 1 == len(self._waves):
            return
        if not holds(self._plan.waves[wave].gate, self._counts[wave]):
            self._held_since = 0
        elif not self._held_since:
            self._held_since = now_ms
            heapq.heappush(self._events, (now_ms + self._soak_ms, _Event.SOAKED, wave, ""))


class _Openings:
    """The instants at which a zone's window allows a release; the last span of each zone is remembered."""

    def __init__(self, window: Window | None, policy: Policy, ends_ms: int) -> None:
        self._window, self._policy, self._ends_ms = window, policy, ends_ms
        self._spans: dict[str, tuple[int, int]] = {}

    def next(self, zone: str, at_ms: int) -> int:
        """The first instant from `at_ms` on at which a release is allowed; one after the plan's end, if there is none."""
        start, last = self._spans.get(zone, (at_ms, at_ms - 1))
        if self._window is None or start <= at_ms <= last:
            return at_ms
        while at_ms < self._ends_ms:
            span = span_at(self._window, zone, at_ms)
            last = span.until_ms - self._policy.ack_deadline_ms
            if span.is_open and at_ms <= last:
                self._spans[zone] = (at_ms, last)
                break
            at_ms = span.until_ms
        return at_ms


def _quantiles(instants: Sequence[int | None]) -> Quantiles:
    known = sorted(instants, key=lambda at_ms: (at_ms is None, at_ms or 0))
    p10, p50, p90 = (known[min(len(known) - 1, round(part * (len(known) - 1)))] for part in (0.1, 0.5, 0.9))
    return Quantiles(p10, p50, p90)
