"""Warnings about valid plans that may not do what their authors expect."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice

from manifold.campaigns.fold import Campaign
from manifold.campaigns.plan import Plan
from manifold.campaigns.windows import VEHICLE, Window, is_skipped, is_zone

MAX_DAYS = 400  # that are looked at for a window that does not open


def warnings_of(campaign: Campaign, now_ms: int) -> list[str]:
    """The warnings about a campaign that starts at `now_ms`, in one sentence each."""
    plan = campaign.decided.plan
    assert plan is not None
    return [*_rule_warnings(campaign, plan), *_target_warnings(campaign, plan), *_skipped_day_warnings(campaign, plan, now_ms)]


def _rule_warnings(campaign: Campaign, plan: Plan) -> Iterator[str]:
    for rule in plan.rules:
        for wave, tally in zip(plan.waves, campaign.tallies, strict=True):
            if isinstance(rule.over, str) and rule.where == "wave" and sum(tally.values()) < rule.at_least:
                number = sum(tally.values())
                yield (
                    f"rule {rule.name} cannot trip in wave {wave.name} of {number}, below its at_least {rule.at_least}; "
                    "add a rule with an absolute number"
                )


def _target_warnings(campaign: Campaign, plan: Plan) -> Iterator[str]:
    left_over = len({target.vin for target in campaign.decided.targets} - campaign.roster.number_of.keys())
    if left_over:
        yield f'{left_over} targets are in no wave and will not be released; add a wave of the size "rest"'
    zoneless = sum(number for _, zone, number in campaign.roster.groups() if not is_zone(zone or ""))
    if plan.window is not None and plan.window.zone == VEHICLE and zoneless:
        yield f"{zoneless} targets have no known zone: their window is that of {plan.window.otherwise}"


def _skipped_day_warnings(campaign: Campaign, plan: Plan, now_ms: int) -> Iterator[str]:
    if plan.window is None:
        return
    zones = Counter[str]()
    for _, zone, number in campaign.roster.groups():
        zones[plan.window.zone_of(zone)] += number
    first = datetime.fromtimestamp(max(now_ms, plan.starts_ms) / 1000, UTC).date()
    last = datetime.fromtimestamp(plan.ends_ms / 1000, UTC).date()
    for name, targets in sorted(zones.items()):
        for day in _closed_days(plan.window, name, first, last):
            yield f"the window does not open on {day} in {name}, where the clock skips it: {targets} targets wait for the next"


def _closed_days(window: Window, zone: str, first: date, last: date) -> Iterator[date]:
    days = (first + timedelta(days=number) for number in range((last - first).days + 1))
    return (day for day in islice(days, MAX_DAYS) if is_skipped(window, zone, day))
