"""The decision of a campaign at one instant: the effects that follow from its state. Pure: no await, no clock, no Redis.

A decision takes effect when it comes back as a recorded fact. So `step` returns either one decision, or releases, and its caller
folds their records before it asks again.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from manifold.campaigns import gates
from manifold.campaigns.decided import RELEASING, Stage
from manifold.campaigns.fold import UNSETTLED, Campaign
from manifold.campaigns.membership import Numbers
from manifold.campaigns.plan import Plan, Wave
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import allowance, next_allowance_ms
from manifold.campaigns.standing import WAITING, Status
from manifold.campaigns.windows import Span, Window, span_at
from manifold.contracts import campaigns as r


class Policy(Struct, frozen=True):
    """Parameters that do not depend on the campaign: the deciding campaigner, and the platform's limits."""

    by: str = f"{r.CAMPAIGNER}0"
    epoch: int = 0
    ack_deadline_ms: int = 30_000  # a release needs this long before its window closes
    max_vins: int = 100_000  # in one release


class Release(Struct, frozen=True):
    """Publish a trigger that names these vehicles."""

    wave: int
    step: int
    until_ms: int | None  # the end of their window
    vins: tuple[str, ...]


class Decide(Struct, frozen=True):
    """Publish this record."""

    command: r.Command


class Wake(Struct, frozen=True):
    """Nothing can change by time alone before this instant (Unix ms). Facts and arrivals may change it."""

    at_ms: int


MIN_SILENCE_STEP_MS = 10_000
Effect = Release | Decide | Wake
_REACTIONS: dict[str, type[r.Pause | r.Cancel | r.Note]] = {"pause": r.Pause, "cancel": r.Cancel, "alert": r.Note}


def step(campaign: Campaign, now_ms: int, here: Collection[str], policy: Policy) -> list[Effect]:
    """The effects at `now_ms` (Unix ms). `here`: the vehicles that are connected; others among them are ignored."""
    plan = campaign.decided.plan
    if plan is None:
        return []
    command = _decision(campaign, plan, now_ms, policy)
    if command is not None:
        return [Decide(command)]
    wakes, releases = _deadlines(campaign, plan), list[Release]()
    if campaign.decided.stage in RELEASING:
        ready = _ready(campaign, plan, now_ms, None if plan.away == "queue" else here, policy)
        allowed = allowance(campaign.recent, plan.per_minute(campaign.total(*gates.SUCCESSES)), now_ms)
        releases = _releases(campaign, ready, allowed, policy)
        wakes += ready.wakes
        if len(ready.numbers) > allowed:
            wakes.append(next_allowance_ms(campaign.recent, now_ms))
    later = [at_ms for at_ms in wakes if at_ms > now_ms]
    return [*releases, Wake(min(later))] if later else list(releases)


def candidates(campaign: Campaign, now_ms: int, policy: Policy) -> tuple[list[str], int]:
    """The targets that may be released at `now_ms` if they are connected, first come first, and how many the rate allows."""
    plan = campaign.decided.plan
    if plan is None or campaign.decided.stage not in RELEASING:
        return [], 0
    allowed = allowance(campaign.recent, plan.per_minute(campaign.total(*gates.SUCCESSES)), now_ms)
    vins = campaign.roster.vins
    return [vins[number] for number in _ready(campaign, plan, now_ms, None, policy).numbers.tolist()] if allowed else [], allowed


def _decision(campaign: Campaign, plan: Plan, now_ms: int, policy: Policy) -> r.Command | None:
    """The one decision that is due now; None if there is none."""
    decided = campaign.decided
    author: dict[str, Any] = {"campaign": plan.campaign, "by": policy.by, "epoch": policy.epoch, "seen": campaign.newest}
    if decided.stage is Stage.PROPOSED:
        starts = decided.is_approved and campaign.problem is None and plan.starts_ms <= now_ms < plan.ends_ms
        return r.Start(**author) if starts else None
    if decided.unpaused_stage in RELEASING and now_ms >= plan.ends_ms:
        return r.Complete(**author, because="ends", counts=totals(campaign))
    silence_due_ms = _silence_due_ms(campaign, plan)
    if silence_due_ms is not None and now_ms >= silence_due_ms:
        return r.Silent(**author, before_ms=now_ms - plan.success.within_ms)
    if decided.stage not in RELEASING:
        return None
    stop = gates.tripped(campaign, now_ms)
    if stop is not None:
        return _REACTIONS[stop.rule.then](**author, rule=stop.rule.name, counts=stop.counts)
    if not campaign.total(*UNSETTLED):
        return r.Complete(**author, because="settled", counts=totals(campaign))
    return _gate_decision(campaign, plan.waves[decided.wave], now_ms, author) if decided.wave + 1 < len(plan.waves) else None


def _gate_decision(campaign: Campaign, wave: Wave, now_ms: int, author: dict[str, Any]) -> r.Command | None:
    decided, gate = campaign.decided, wave.gate
    counts = gates.counts_of(campaign, decided.wave)
    fields: dict[str, Any] = {**author, "wave": decided.wave, "counts": counts}
    is_soaking = decided.held_because == "gate"
    if not gates.holds(gate, counts):
        if is_soaking:
            return r.Unhold(**fields)
        is_late = gate.patience is not None and now_ms >= decided.opened_ms + duration_ms(gate.patience)
        return r.Hold(**fields, because="patience") if is_late and not decided.held_because else None
    soak_ms = duration_ms(gate.soak)
    since_ms = decided.held_ms if is_soaking else now_ms
    if now_ms >= since_ms + soak_ms and len(decided.passed_by) >= gate.approve:
        return r.Pass(**fields)
    return None if is_soaking else r.Hold(**fields, because="gate")


def _silence_due_ms(campaign: Campaign, plan: Plan) -> int | None:
    """When the vehicle whose answer is awaited longest is silent: at steps of time, so that one record is about many."""
    if plan.success.by != "answer" or campaign.decided.unpaused_stage not in RELEASING:
        return None
    since_ms = campaign.ledger.unanswered_since_ms(campaign.decided.terms)
    if since_ms is None:
        return None
    step_ms = max(MIN_SILENCE_STEP_MS, plan.success.within_ms // 60)
    return -(-(since_ms + plan.success.within_ms) // step_ms) * step_ms


def _deadlines(campaign: Campaign, plan: Plan) -> list[int]:
    """The instants at which a decision may be due."""
    decided = campaign.decided
    silence_due_ms = _silence_due_ms(campaign, plan)
    silence = [] if silence_due_ms is None else [silence_due_ms]
    match decided.stage:
        case Stage.PROPOSED:
            return [plan.starts_ms] if decided.is_approved else []
        case Stage.PAUSED:  # a paused proposal has no deadline: only people can resume it
            return [] if decided.is_proposal else [plan.ends_ms, *silence]
        case Stage.RUNNING | Stage.HELD:
            gate = plan.waves[decided.wave].gate
            soak = [decided.held_ms + duration_ms(gate.soak)] if decided.held_because == "gate" else []
            patience = [] if gate.patience is None else [decided.opened_ms + duration_ms(gate.patience)]
            return [plan.ends_ms, *soak, *patience, *silence]
    return []


class _Ready(NamedTuple):
    """The targets that may be released now, and the instants at which there may be others."""

    numbers: Numbers  # in the order of releases: who has waited longest, then by wave and draw
    until_ms: Numbers  # the end of the window of each; -1 without one
    wakes: list[int]


def _ready(campaign: Campaign, plan: Plan, now_ms: int, asked: Collection[str] | None, policy: Policy) -> _Ready:
    """Those of `asked` that may be released; None asks for all."""
    roster, ledger = campaign.roster, campaign.ledger
    numbers = np.arange(len(roster)) if asked is None else roster.numbers(asked)
    numbers = numbers[(ledger.status[numbers] == WAITING) & (roster.waves[numbers] <= campaign.decided.wave)]
    is_early = ledger.not_before_ms[numbers] > now_ms
    wakes = [int(ledger.not_before_ms[numbers[is_early]].min())] if is_early.any() else []
    numbers = numbers[~is_early]
    until_ms = np.full(len(numbers), -1, np.int64)
    if plan.window is not None:
        ends, more = _ends_of_windows(campaign, plan.window, now_ms, numbers, policy)
        until_ms, wakes = ends[roster.zones[numbers]], wakes + more
        numbers, until_ms = numbers[until_ms > 0], until_ms[until_ms > 0]
    order = np.argsort(ledger.since[numbers], kind="stable")
    return _Ready(numbers[order], until_ms[order], wakes)


def _ends_of_windows(
    campaign: Campaign, window: Window, now_ms: int, numbers: Numbers, policy: Policy
) -> tuple[Numbers, list[int]]:
    """For each zone of the roster, when the window ends in which a release still has time, or 0; and when that may change."""
    roster = campaign.roster
    ends, spans = np.zeros(len(roster.zone_names), np.int64), dict[str, Span]()
    for code in np.unique(roster.zones[numbers]).tolist():
        zone = window.zone_of(roster.zone_names[code])
        if zone not in spans:
            spans[zone] = span_at(window, zone, now_ms)
        span = spans[zone]
        if span.is_open and span.until_ms - now_ms >= policy.ack_deadline_ms:
            ends[code] = span.until_ms
    return ends, [span.until_ms for span in spans.values()]


def _releases(campaign: Campaign, ready: _Ready, allowed: int, policy: Policy) -> list[Release]:
    """As many of the targets as are allowed, divided by wave, by the end of their window, and by size."""
    groups: dict[tuple[int, int], list[str]] = {}
    numbers, vins = ready.numbers[:allowed], campaign.roster.vins
    waves, ends = campaign.roster.waves[numbers].tolist(), ready.until_ms[:allowed].tolist()
    for number, wave, until_ms in zip(numbers.tolist(), waves, ends, strict=True):
        groups.setdefault((wave, until_ms), []).append(vins[number])
    parts = [
        (wave, None if until_ms < 0 else until_ms, tuple(group[first : first + policy.max_vins]))
        for (wave, until_ms), group in groups.items()
        for first in range(0, len(group), policy.max_vins)
    ]
    return [Release(wave, campaign.steps + place, until_ms, part) for place, (wave, until_ms, part) in enumerate(parts, 1)]


def totals(campaign: Campaign) -> r.Counts:
    """The number of targets by status, without zeros."""
    return {status.value: number for status in Status if (number := campaign.total(status))}
