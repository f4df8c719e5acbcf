"""Warnings about valid plans that may not do what their authors expect."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from manifold.campaigns.fold import Campaign
from manifold.campaigns.plan import Plan
from manifold.campaigns.windows import VEHICLE, Window, is_skipped, is_zone

MAX_DAYS = 400  # how many days of a plan are checked for a window that does not open


def warnings_of(campaign: Campaign, now_ms: int) -> list[str]:
    """Return the warnings about a campaign that starts at `now_ms` (Unix ms), one sentence each."""
    plan = campaign.decided.plan
    assert plan is not None
    return [*_rule_warnings(campaign, plan), *_target_warnings(campaign, plan), *_skipped_day_warnings(campaign, plan, now_ms)]


def _rule_warnings(campaign: Campaign, plan: Plan) -> Iterator[str]:
    """Warn about rules that limit a share of each wave, but need more known targets than a wave has."""
    for rule in plan.rules:
        is_share_of_wave = isinstance(rule.over, str) and rule.where == "wave"
        if not is_share_of_wave:
            continue
        for wave, tally in zip(plan.waves, campaign.tallies, strict=True):
            wave_size = sum(tally.values())
            if wave_size < rule.at_least:
                yield (
                    f"rule {rule.name} cannot trip in wave {wave.name} of {wave_size}, below its at_least {rule.at_least}; "
                    "add a rule with an absolute number"
                )


def _target_warnings(campaign: Campaign, plan: Plan) -> Iterator[str]:
    """Warn about targets that belong to no wave, and about targets whose own zone is unknown."""
    listed_vins = {target.vin for target in campaign.decided.targets}
    left_over = len(listed_vins - campaign.roster.number_of.keys())
    if left_over:
        yield f'{left_over} targets are in no wave and will not be released; add a wave of the size "rest"'
    zoneless = sum(number for _, zone, number in campaign.roster.groups() if not is_zone(zone or ""))
    if plan.window is not None and plan.window.zone == VEHICLE and zoneless:
        yield f"{zoneless} targets have no known zone: their window is that of {plan.window.otherwise}"


def _skipped_day_warnings(campaign: Campaign, plan: Plan, now_ms: int) -> Iterator[str]:
    """Warn about days on which the window does not open in a zone because the clock skips it."""
    if plan.window is None:
        return
    targets_of_zone = Counter[str]()
    for _, zone, number in campaign.roster.groups():
        targets_of_zone[plan.window.zone_of(zone)] += number
    first_day = datetime.fromtimestamp(max(now_ms, plan.starts_ms) / 1000, UTC).date()
    last_day = datetime.fromtimestamp(plan.ends_ms / 1000, UTC).date()
    for zone, targets in sorted(targets_of_zone.items()):
        for day in _skipped_days(plan.window, zone, first_day, last_day):
            yield f"the window does not open on {day} in {zone}, where the clock skips it: {targets} targets wait for the next"


def _skipped_days(window: Window, zone: str, first_day: date, last_day: date) -> Iterator[date]:
    """Yield the skipped days from `first_day` to `last_day`, both inclusive, of which at most `MAX_DAYS` are checked."""
    day_count = min(MAX_DAYS, (last_day - first_day).days + 1)
    days = (first_day + timedelta(days=offset) for offset in range(day_count))
    return (day for day in days if is_skipped(window, zone, day))
