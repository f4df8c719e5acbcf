"""How long a campaign takes, from how long vehicles have stayed away so far: draws of the fleet, each played through the plan.

Targets of one wave and zone that come at one instant are played as one group, so a draw costs what the observations cost.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate

import numpy as np
from msgspec import Struct

from manifold.campaigns.fold import Campaign
from manifold.campaigns.gates import holds
from manifold.campaigns.plan import Plan
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.step import Policy
from manifold.campaigns.windows import Window, span_at

DRAWS = 200
MAX_OBSERVATIONS = 1000  # of absences; of more, so many are taken at equal distances
MILESTONES = (50, 90, 99)  # per cent of the targets

Arrival = tuple[int, int | None, str, int]  # a wave, when its targets are here first (None: never), their zone, how many
Delivery = tuple[int, int]  # when (Unix ms), how many


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
    campaign: Campaign,
    absences_ms: Sequence[int | None],
    policy: Policy,
    now_ms: int,
    *,
    ack_ms: int = 1000,
    seed: int = 0,
    draws: int = DRAWS,
) -> Forecast:
    """The forecast of a campaign that starts at `now_ms`.

    `absences_ms` are observed times until a vehicle was seen, None where it was not seen at all. It is assumed that a vehicle
    stays once it has come and acknowledges after `ack_ms`, and that people approve at once.
    """
    plan = campaign.decided.plan
    assert plan is not None
    observed = _condensed(absences_ms)
    targets = [
        (wave, plan.window.zone_of(zone) if plan.window else "", number) for wave, zone, number in campaign.roster.groups()
    ]
    chance = np.random.default_rng(seed)
    runs: list[_Run] = []
    for _ in range(draws):
        arrivals: list[Arrival] = []
        for wave, zone, number in targets:
            counts = chance.multinomial(number, [weight for _, weight in observed]).tolist()
            for (absence, _), count in zip(observed, counts, strict=True):
                if count:
                    arrivals.append((wave, None if absence is None else now_ms + absence, zone, count))
        runs.append(_Run(Draw(plan, arrivals, policy, now_ms, ack_ms).play()))
    total = len(campaign.roster)
    delivered = {percent: _quantiles([run.reaches(-(-total * percent // 100)) for run in runs]) for percent in MILESTONES}
    ends = [run.last_ms if run.number == total else plan.ends_ms for run in runs]
    never = sorted(total - run.number for run in runs)[draws // 2]
    return Forecast(delivered, _quantiles(ends), never, draws)


def _condensed(absences_ms: Sequence[int | None]) -> list[tuple[int | None, float]]:
    """The distinct observations, each with its share."""
    ordered = sorted(absences_ms, key=lambda absence: (absence is None, absence or 0))
    taken = ordered
    if len(ordered) > MAX_OBSERVATIONS:
        taken = [ordered[(2 * place + 1) * len(ordered) // (2 * MAX_OBSERVATIONS)] for place in range(MAX_OBSERVATIONS)]
    return [(absence, taken.count(absence) / len(taken)) for absence in dict.fromkeys(taken)]


class _Run:
    """The deliveries of one draw."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._instants = [at_ms for at_ms, _ in deliveries]
        self._numbers = list(accumulate(number for _, number in deliveries))
        self.number = self._numbers[-1] if deliveries else 0
        self.last_ms = self._instants[-1] if deliveries else 0

    def reaches(self, number: int) -> int | None:
        """When so many are delivered; None: never."""
        return self._instants[bisect_left(self._numbers, number)] if number <= self.number else None


class _Event(IntEnum):
    """What happens at an instant, in the order in which the campaigner would see it."""

    ACKNOWLEDGED = 0
    SOAKED = 1  # the gate passes, if its conditions have held all the time
    READY = 2  # targets are here and their window is open
    FREE = 3  # the rate allows a release again


class Draw:
    """One draw of the fleet, played event by event: when how many targets are delivered."""

    def __init__(self, plan: Plan, arrivals: Iterable[Arrival], policy: Policy, now_ms: int, ack_ms: int) -> None:
        self._plan, self._ack_ms = plan, ack_ms
        self._openings = _Openings(plan.window, policy, plan.ends_ms)
        self._waves: list[list[tuple[int | None, str, int]]] = [[] for _ in plan.waves]
        for wave, at_ms, zone, number in arrivals:
            self._waves[wave].append((at_ms, zone, number))
        self._counts = [
            {"targets": sum(number for *_, number in wave), "released": 0, "known": 0, "success": 0} for wave in self._waves
        ]
        self._events: list[tuple[int, _Event, int, str, int]] = []
        self._ready = [deque[tuple[str, int]]() for _ in plan.waves]
        self._recent, self._spent, self._free_ms = deque[Delivery](), 0, 0  # the releases of the last 60 s, and their sum
        self._successes, self._deliveries = 0, list[Delivery]()
        self._open(0, max(now_ms, plan.starts_ms))

    def play(self) -> list[Delivery]:
        """All deliveries before the plan's end, oldest first."""
        while self._events and self._events[0][0] < self._plan.ends_ms:
            now_ms = self._events[0][0]
            while self._events and self._events[0][0] == now_ms:
                self._happens(*heapq.heappop(self._events))
            self._drain(now_ms)
        return self._deliveries

    def _happens(self, at_ms: int, event: _Event, wave: int, zone: str, number: int) -> None:
        match event:
            case _Event.READY:
                self._ready[wave].append((zone, number))
            case _Event.ACKNOWLEDGED:
                self._deliveries.append((at_ms, number))
                self._successes += number
                self._counts[wave]["known"] += number
                self._counts[wave]["success"] += number
                self._judge(at_ms)
            case _Event.SOAKED if wave == self._open_wave and at_ms == self._held_since + self._soak_ms:
                self._open(wave + 1, at_ms)

    def _open(self, wave: int, now_ms: int) -> None:
        self._open_wave, self._held_since = wave, 0
        self._soak_ms = duration_ms(self._plan.waves[wave].gate.soak)
        for at_ms, zone, number in self._waves[wave]:
            if at_ms is not None:
                ready_ms = self._openings.next(zone, max(at_ms, now_ms))
                heapq.heappush(self._events, (ready_ms, _Event.READY, wave, zone, number))

    def _drain(self, now_ms: int) -> None:
        """Release targets that are ready, as many as the rate has; those of earlier waves go first."""
        while self._recent and self._recent[0][0] <= now_ms - MINUTE_MS:
            self._spent -= self._recent.popleft()[1]
        allowed = self._plan.per_minute(self._successes) - self._spent
        for wave, ready in enumerate(self._ready[: self._open_wave + 1]):
            while ready and allowed > 0:
                zone, number = ready.popleft()
                open_ms = self._openings.next(zone, now_ms)
                if open_ms > now_ms:
                    heapq.heappush(self._events, (open_ms, _Event.READY, wave, zone, number))
                    continue
                taken = min(number, allowed)
                if taken < number:
                    ready.appendleft((zone, number - taken))
                allowed -= taken
                self._release(wave, zone, taken, now_ms)
        if any(self._ready) and self._recent and self._free_ms <= now_ms:
            self._free_ms = self._recent[0][0] + MINUTE_MS
            heapq.heappush(self._events, (self._free_ms, _Event.FREE, 0, "", 0))

    def _release(self, wave: int, zone: str, number: int, now_ms: int) -> None:
        if self._recent and self._recent[-1][0] == now_ms:
            self._recent[-1] = (now_ms, self._recent[-1][1] + number)
        else:
            self._recent.append((now_ms, number))
        self._spent += number
        self._counts[wave]["released"] += number
        heapq.heappush(self._events, (now_ms + self._ack_ms, _Event.ACKNOWLEDGED, wave, zone, number))
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
            heapq.heappush(self._events, (now_ms + self._soak_ms, _Event.SOAKED, wave, "", 0))


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
