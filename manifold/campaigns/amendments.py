"""Decides whether a plan can be replaced by an amended one, and in which fields the amended plan allows more."""

from collections.abc import Sequence

from manifold.campaigns.membership import assign
from manifold.campaigns.plan import REST, Gate, Plan, Rate, Rule, Wave
from manifold.campaigns.quantities import duration_ms, share
from manifold.campaigns.success import Retry
from manifold.campaigns.windows import Window
from manifold.contracts.campaigns import Target
from manifold.contracts.messages import Refused

_FIXED_FIELDS = ("campaign", "data_id", "targets", "away", "success", "starts", "approve", "wait_for_data")
_SEVERITY = {"alert": 0, "pause": 1, "cancel": 2}


def refusal(old: Plan, new: Plan, open_wave: int, targets: Sequence[Target]) -> str | None:
    """Return the reason why the plan `new` cannot replace `old` while wave `open_wave` is open, or None if it can."""
    for name in _FIXED_FIELDS:
        if getattr(old, name) != getattr(new, name):
            return f"{name}: is not what it was and cannot be amended; propose another campaign"
    if old.waves[:open_wave] != new.waves[:open_wave]:
        return f"waves: wave {open_wave} is open, and those before it cannot be amended; leave them as they were"
    old_names = {wave.name for wave in old.waves}
    old_fields = [_fields_that_draw(wave) for wave in old.waves]
    kept_fields = [_fields_that_draw(wave) for wave in new.waves if wave.name in old_names]
    if kept_fields != old_fields:
        return "waves: those that the plan had must stay, in their order, with their vins and sizes; amend their gates alone"
    added_waves = [(index, wave) for index, wave in enumerate(new.waves) if wave.name not in old_names]
    for index, wave in added_waves:
        if index <= open_wave:
            return f"waves[{index}]: is not behind the open wave {open_wave}; add waves after that"
        if wave.vins:
            return f"waves[{index}].vins: may belong to a wave that was open; give an added wave a size"
    if added_waves and targets:  # without a list there is nothing yet that the waves could fail to fit
        members = assign(new, targets)
        return members.reason if isinstance(members, Refused) else None
    return None


def widened(old: Plan, new: Plan) -> tuple[str, ...]:
    """Return the names of the fields in which the plan `new` allows more than `old`."""
    new_gates = {wave.name: wave.gate for wave in new.waves}
    allows_more = {
        "rate": _is_faster(old.rate, new.rate),
        "window": _reaches_outside(old.window, new.window),
        "rules": any(_is_relaxed(old_rule, new.rules) for old_rule in old.rules),
        "retry": _tries_more(old.retry, new.retry),
        "waves": any(_is_weaker(wave.gate, new_gates[wave.name]) for wave in old.waves) or _releases_more(old.waves, new.waves),
        "ends": new.ends_ms > old.ends_ms,
    }
    return tuple(field for field, is_wider in allows_more.items() if is_wider)


def _releases_more(old: Sequence[Wave], new: Sequence[Wave]) -> bool:
    """Whether a wave was added that can take targets which were in no wave. A wave of the size "rest" leaves none."""
    return len(new) > len(old) and all(wave.size != REST for wave in old)


def _fields_that_draw(wave: Wave) -> tuple[object, ...]:
    """Return the fields of a wave that decide which targets belong to it."""
    return wave.name, wave.vins, wave.size


def _is_faster(old: int | Rate | None, new: int | Rate | None) -> bool:
    """Whether the rate `new` may at some time allow more than the rate `old`.

    An int is a constant rate; a `Rate` grows from `start` by the factor `times` with each `every` successes, up to `up_to`; None
    has no limit. Two growing rates are compared field by field, so a field that allows more counts even if others offset it.
    """
    if isinstance(old, Rate) and isinstance(new, Rate):
        return new.start > old.start or new.times > old.times or new.every < old.every or new.up_to > old.up_to
    lowest_old = old.start if isinstance(old, Rate) else old
    highest_new = new.up_to if isinstance(new, Rate) else new
    if lowest_old is None:  # the old rate has no limit, so no rate is higher
        return False
    return highest_new is None or highest_new > lowest_old


def _reaches_outside(old: Window | None, new: Window | None) -> bool:
    """Whether the window `new` includes times that the window `old` excludes. None is a window that is always open.

    Opening times are compared as times of day. So a new window that opens after midnight counts as reaching outside an old one
    that opens before midnight, even if the old one includes all hours of the new one.
    """
    if old is None or old == new:
        return False
    if new is None or (old.zone, old.otherwise) != (new.zone, new.otherwise):
        return True
    has_new_days = not set(new.days) <= set(old.days)
    opens_earlier = new.opens_ms < old.opens_ms
    closes_later = new.opens_ms + new.length_ms > old.opens_ms + old.length_ms
    return has_new_days or opens_earlier or closes_later


def _is_relaxed(old_rule: Rule, new_rules: Sequence[Rule]) -> bool:
    """Whether no new rule is at least as strict as this old rule."""
    return not any(_is_as_strict(old_rule, new_rule) for new_rule in new_rules)


def _is_as_strict(old: Rule, new: Rule) -> bool:
    """Whether the rule `new` trips whenever `old` trips, and reacts at least as severely."""
    are_both_numbers = isinstance(old.over, int) and isinstance(new.over, int)
    are_both_shares = isinstance(old.over, str) and isinstance(new.over, str)
    if old.where != new.where or old.of != new.of or not (are_both_numbers or are_both_shares):
        return False  # the two count differently, so neither is the stricter one
    return (
        set(old.count) <= set(new.count)
        and _limit(new) <= _limit(old)
        and new.at_least <= old.at_least
        and _SEVERITY[new.then] >= _SEVERITY[old.then]
    )


def _limit(rule: Rule) -> int:
    """Return the limit of a rule: a number of targets, or a share in hundredths of a per cent."""
    return rule.over if isinstance(rule.over, int) else share(rule.over)


def _tries_more(old: Retry | None, new: Retry | None) -> bool:
    """Whether `new` retries more often, sooner, or after more outcomes than `old`. None never retries."""
    if new is None:
        return False
    if old is None:
        return True
    return new.times > old.times or not set(new.on) <= set(old.on) or duration_ms(new.after) < duration_ms(old.after)


def _is_weaker(old: Gate, new: Gate) -> bool:
    """Whether any condition of the gate `new` is easier to meet than the same condition of `old`.

    The patience is no condition: it only says when to hold a gate that is not met.
    """
    for name in ("released", "known", "success"):
        if share(getattr(new, name)) < share(getattr(old, name)):
            return True
    return duration_ms(new.soak) < duration_ms(old.soak) or new.approve < old.approve
