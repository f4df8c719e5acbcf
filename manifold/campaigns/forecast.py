"""Forecasts how long a campaign takes, by Monte Carlo simulation.

Each draw gives every target a random one of the observed absences, and is then played through the plan. Targets of one wave and
zone with the same absence are played as one group, so the cost of a draw depends on the number of observations, not of targets.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from msgspec import Struct

from manifold.campaigns.draws import Arrival, Delivery, Draw
from manifold.campaigns.fold import Campaign
from manifold.campaigns.step import Policy

DRAWS = 200
MAX_OBSERVATIONS = 1000  # absences; of a longer sorted list, this many are picked at equal distances
QUEUE_PARTS = 2000  # with `away: queue`, about this many groups of targets are shuffled, instead of single targets
MILESTONES = (50, 90, 99)  # per cent of the targets


class Quantiles(Struct, frozen=True):
    """The distribution of an instant (Unix ms) over the draws. None sorts last: in such a draw the instant never comes."""

    p10: int | None
    p50: int | None
    p90: int | None


class Forecast(Struct, frozen=True):
    """When the milestones of delivery are reached, and when the campaign ends."""

    delivered: dict[int, Quantiles]  # by milestone in per cent
    end: Quantiles
    never: int  # the median number of targets that are not delivered before the plan's end
    draws: int  # the number of draws


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
    """Return the forecast of a campaign that starts at `now_ms`.

    `absences_ms` lists observed times until a vehicle connected (ms); None stands for a vehicle that did not connect at all.
    The forecast assumes that a vehicle stays connected once it has connected, that it acknowledges after `ack_ms`, and that
    people approve at once. If a vehicle connects after its window has ended, its entry is withdrawn and released again in the
    next window.
    """
    plan = campaign.decided.plan
    assert plan is not None
    observations = _weighted(absences_ms)
    zone_groups: list[tuple[int, str, int]] = []  # wave, zone whose clock counts ("" without a window), number of targets
    for wave, listed_zone, size in campaign.roster.groups():
        zone_groups.append((wave, "" if plan.window is None else plan.window.zone_of(listed_zone), size))
    random = np.random.default_rng(seed)
    total = len(campaign.roster)
    max_group_size = max(1, total // QUEUE_PARTS) if plan.away == "queue" else total
    played: list[_PlayedDraw] = []
    for _ in range(draws):
        arrivals = list(_arrivals(zone_groups, observations, random, max_group_size, now_ms))
        if plan.away == "queue":  # targets are released in a random order, which does not depend on when they connect
            arrivals = [arrivals[index] for index in random.permutation(len(arrivals))]
        played.append(_PlayedDraw(Draw(plan, arrivals, policy, now_ms, ack_ms).play()))
    delivered: dict[int, Quantiles] = {}
    for percent in MILESTONES:
        needed = math.ceil(total * percent / 100)
        delivered[percent] = _quantiles([draw.reached_ms(needed) for draw in played])
    ends = [draw.last_ms if draw.delivered == total else plan.ends_ms for draw in played]
    undelivered = sorted(total - draw.delivered for draw in played)
    median_undelivered = undelivered[draws // 2]
    return Forecast(delivered, _quantiles(ends), median_undelivered, draws)


def _weighted(absences_ms: Sequence[int | None]) -> list[tuple[int | None, float]]:
    """Return the distinct observations, each with its share of all observations."""
    observations = sorted(absences_ms, key=_none_last)
    if len(observations) > MAX_OBSERVATIONS:
        # Pick the middle of each of MAX_OBSERVATIONS equal parts.
        middles = [(2 * part + 1) * len(observations) // (2 * MAX_OBSERVATIONS) for part in range(MAX_OBSERVATIONS)]
        observations = [observations[middle] for middle in middles]
    return [(absence, observations.count(absence) / len(observations)) for absence in dict.fromkeys(observations)]


def _arrivals(
    zone_groups: Sequence[tuple[int, str, int]],
    observations: Sequence[tuple[int | None, float]],
    random: np.random.Generator,
    max_group_size: int,
    now_ms: int,
) -> Iterator[Arrival]:
    """Yield the arrivals of one draw: each target gets a random observation, and equal ones are grouped.

    `zone_groups` lists wave, zone and number of targets. No group that is yielded exceeds `max_group_size`.
    """
    weights = [weight for _, weight in observations]
    for wave, zone, size in zone_groups:
        counts = random.multinomial(size, weights).tolist()
        for (absence, _), count in zip(observations, counts, strict=True):
            comes_ms = None if absence is None else now_ms + absence
            for grouped in range(0, count, max_group_size):
                yield wave, comes_ms, zone, min(max_group_size, count - grouped)


class _PlayedDraw:
    """The deliveries of one draw, oldest first."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._instants = [at_ms for at_ms, _ in deliveries]
        self._running_totals = list(accumulate(number for _, number in deliveries))
        self.delivered = self._running_totals[-1] if deliveries else 0
        self.last_ms = self._instants[-1] if deliveries else 0

    def reached_ms(self, number: int) -> int | None:
        """Return when `number` targets were delivered (Unix ms), or None if that number was never reached."""
        if number > self.delivered:
            return None
        return self._instants[bisect_left(self._running_totals, number)]


def _quantiles(instants: Sequence[int | None]) -> Quantiles:
    ordered = sorted(instants, key=_none_last)
    last = len(ordered) - 1
    return Quantiles(p10=ordered[round(0.1 * last)], p50=ordered[round(0.5 * last)], p90=ordered[round(0.9 * last)])


def _none_last(number: int | None) -> tuple[bool, int]:
    """Return a sort key by which None comes after all numbers."""
    return number is None, number or 0
