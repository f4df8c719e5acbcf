"""How long a campaign takes, from how long vehicles have stayed away so far: draws of the fleet, each played through the plan.

Targets of one wave and zone that come at one instant are played as one group, so a draw costs what the observations cost.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from msgspec import Struct

from manifold.campaigns.draws import Arrival, Delivery, Draw
from manifold.campaigns.fold import Campaign
from manifold.campaigns.step import Policy

DRAWS = 200
MAX_OBSERVATIONS = 1000  # of absences; from more, this many are sampled at equal distances
QUEUE_PARTS = 2000  # targets that are released whether they are connected or not are shuffled in this many groups
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
    stays once it has come and acknowledges after `ack_ms`, and that people approve at once. What is queued for a vehicle that
    comes after its window is withdrawn and released again in the next one.
    """
    plan = campaign.decided.plan
    assert plan is not None
    observed = _condensed(absences_ms)
    targets = [
        (wave, plan.window.zone_of(zone) if plan.window else "", number) for wave, zone, number in campaign.roster.groups()
    ]
    chance, part = np.random.default_rng(seed), len(campaign.roster)
    if plan.away == "queue":
        part = max(1, part // QUEUE_PARTS)
    runs: list[_Run] = []
    for _ in range(draws):
        arrivals: list[Arrival] = []
        for wave, zone, number in targets:
            counts = chance.multinomial(number, [weight for _, weight in observed]).tolist()
            for (absence, _), count in zip(observed, counts, strict=True):
                comes_ms = None if absence is None else now_ms + absence
                arrivals += ((wave, comes_ms, zone, min(part, count - first)) for first in range(0, count, part))
        if plan.away == "queue":  # who is released first does not depend on who comes first
            arrivals = [arrivals[place] for place in chance.permutation(len(arrivals))]
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
        """When `number` targets are delivered; None: never."""
        return self._instants[bisect_left(self._numbers, number)] if number <= self.number else None


def _quantiles(instants: Sequence[int | None]) -> Quantiles:
    known = sorted(instants, key=lambda at_ms: (at_ms is None, at_ms or 0))
    p10, p50, p90 = (known[min(len(known) - 1, round(part * (len(known) - 1)))] for part in (0.1, 0.5, 0.9))
    return Quantiles(p10, p50, p90)
