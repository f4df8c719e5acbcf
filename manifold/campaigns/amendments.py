"""What an amendment of a plan may change, and whether it allows more than people have approved."""

import math
from collections.abc import Sequence

from manifold.campaigns.membership import assign
from manifold.campaigns.plan import Gate, Plan, Rate, Rule, Wave
from manifold.campaigns.quantities import duration_ms, share
from manifold.campaigns.success import Retry
from manifold.campaigns.windows import Window
from manifold.contracts.campaigns import Target
from manifold.contracts.messages import Refused

_FIXED = ("campaign", "data_id", "targets", "away", "success", "starts", "approve", "wait_for_data")
_SEVERITY = {"alert": 0, "pause": 1, "cancel": 2}


def refusal(old: Plan, new: Plan, open_wave: int, targets: Sequence[Target]) -> str | None:
    """Why `new` cannot take the place of `old` while `open_wave` is open; None: it can."""
    for name in _FIXED:
        if getattr(old, name) != getattr(new, name):
            return f"{name}: is not what it was and cannot be amended; propose another campaign"
    if old.waves[:open_wave] != new.waves[:open_wave]:
        return f"waves: wave {open_wave} is open, and those before it cannot be amended; leave them as they were"
    known = {wave.name for wave in old.waves}
    kept = [_membership(wave) for wave in new.waves if wave.name in known]
    if kept != [_membership(wave) for wave in old.waves]:
        return "waves: those that the plan had must stay, in their order, with their vins and sizes; amend their gates alone"
    added = [(place, wave) for place, wave in enumerate(new.waves) if wave.name not in known]
    for place, wave in added:
        if place <= open_wave:
            return f"waves[{place}]: is not behind the open wave {open_wave}; add waves after that"
        if wave.vins:
            return f"waves[{place}].vins: may belong to a wave that was open; give an added wave a size"
    if added and targets:
        waves = assign(new, targets)
        return waves.reason if isinstance(waves, Refused) else None
    return None


def widened(old: Plan, new: Plan) -> tuple[str, ...]:
    """The fields in which `new` allows more than `old`."""
    gates = {wave.name: wave.gate for wave in new.waves}
    checks = {
        "rate": _is_faster(old.rate, new.rate),
        "window": _is_longer(old.window, new.window),
        "rules": not all(any(_is_as_strict(rule, other) for other in new.rules) for rule in old.rules),
        "retry": _tries_more(old.retry, new.retry),
        "waves": any(_is_weaker(wave.gate, gates[wave.name]) for wave in old.waves),
        "ends": new.ends_ms > old.ends_ms,
    }
    return tuple(name for name, allows_more in checks.items() if allows_more)


def _membership(wave: Wave) -> tuple[object, ...]:
    return wave.name, wave.vins, wave.size


def _is_faster(old: int | Rate | None, new: int | Rate | None) -> bool:
    if isinstance(old, Rate) and isinstance(new, Rate):
        return new.start > old.start or new.times > old.times or new.every < old.every or new.up_to > old.up_to
    lowest = old.start if isinstance(old, Rate) else old
    highest = new.up_to if isinstance(new, Rate) else new
    return (math.inf if highest is None else highest) > (math.inf if lowest is None else lowest)


def _is_longer(old: Window | None, new: Window | None) -> bool:
    """Whether the new window is not inside the old one. One that begins on the other side of midnight counts as not inside."""
    if old is None or old == new:
        return False
    if new is None or (old.zone, old.otherwise) != (new.zone, new.otherwise) or not set(new.days) <= set(old.days):
        return True
    later_ms = new.opens_ms - old.opens_ms
    return later_ms < 0 or later_ms + new.length_ms > old.length_ms


def _is_as_strict(old: Rule, new: Rule) -> bool:
    """Whether `new` trips whenever `old` does, and does at least as much."""
    if (old.where, old.of, isinstance(old.over, int)) != (new.where, new.of, isinstance(new.over, int)):
        return False
    limits = [rule.over if isinstance(rule.over, int) else share(rule.over) for rule in (old, new)]
    return (
        set(old.count) <= set(new.count)
        and limits[1] <= limits[0]
        and new.at_least <= old.at_least
        and _SEVERITY[new.then] >= _SEVERITY[old.then]
    )


def _tries_more(old: Retry | None, new: Retry | None) -> bool:
    if old is None or new is None:
        return new is not None
    return new.times > old.times or not set(new.on) <= set(old.on) or duration_ms(new.after) < duration_ms(old.after)


def _is_weaker(old: Gate, new: Gate) -> bool:
    shares = any(share(getattr(new, name)) < share(getattr(old, name)) for name in ("released", "known", "success"))
    return shares or duration_ms(new.soak) < duration_ms(old.soak) or new.approve < old.approve
