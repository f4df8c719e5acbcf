"""The decision of a campaign at one instant: the effects that follow from its state. Pure: no await, no clock, no Redis.

A decision takes effect when it comes back as a recorded fact. So `step` returns either one decision, or releases, and its caller
folds their records before it asks again.
"""

import heapq
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from msgspec import Struct

from manifold.campaigns import gates
from manifold.campaigns.decisions import Stage
from manifold.campaigns.fold import UNSETTLED, Campaign, Status
from manifold.campaigns.plan import Plan, Wave
from manifold.campaigns.quantities import duration_ms
from manifold.campaigns.rate import allowance, next_allowance_ms
from manifold.campaigns.windows import Span, span_at
from manifold.contracts import campaigns as r


class Policy(Struct, frozen=True):
    """What does not depend on the campaign: who decides, and the platform's limits."""

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
    if campaign.decided.stage in (Stage.RUNNING, Stage.HELD):
        ready = _ready(campaign, plan, now_ms, campaign.members if plan.away == "queue" else here, policy)
        allowed = allowance(campaign.recent, plan.per_minute(campaign.total(*gates.SUCCESSES)), now_ms)
        releases = _releases(campaign, heapq.nsmallest(allowed, ready.targets), policy)
        wakes += ready.wakes
        if len(ready.targets) > allowed:
            wakes.append(next_allowance_ms(campaign.recent, now_ms))
    later = [at_ms for at_ms in wakes if at_ms > now_ms]
    return [*releases, Wake(min(later))] if later else list(releases)


def _decision(campaign: Campaign, plan: Plan, now_ms: int, policy: Policy) -> r.Command | None:
    decided = campaign.decided
    author: dict[str, Any] = {"campaign": plan.campaign, "by": policy.by, "epoch": policy.epoch}
    if decided.stage is Stage.PROPOSED:
        starts = decided.is_approved and campaign.problem is None and plan.starts_ms <= now_ms < plan.ends_ms
        return r.Start(**author) if starts else None
    if decided.stage in (Stage.RUNNING, Stage.HELD, Stage.PAUSED) and now_ms >= plan.ends_ms:
        return r.Complete(**author, because="ends", counts=_totals(campaign))
    if decided.stage not in (Stage.RUNNING, Stage.HELD):
        return None
    stop = gates.tripped(campaign, now_ms)
    if stop is not None:
        return _REACTIONS[stop.rule.then](**author, rule=stop.rule.name, counts=stop.counts)
    if not campaign.total(*UNSETTLED):
        return r.Complete(**author, because="settled", counts=_totals(campaign))
    return _gate_decision(campaign, plan.waves[decided.wave], now_ms, author) if decided.wave + 1 < len(plan.waves) else None


def _gate_decision(campaign: Campaign, wave: Wave, now_ms: int, author: dict[str, Any]) -> r.Command | None:
    decided, gate = campaign.decided, wave.gate
    counts = gates.counts_of(campaign, decided.wave)
    about: dict[str, Any] = {**author, "wave": decided.wave, "counts": counts}
    is_soaking = decided.held_because == "gate"
    if not gates.holds(gate, counts):
        if is_soaking:
            return r.Unhold(**about)
        is_late = gate.patience is not None and now_ms >= decided.opened_ms + duration_ms(gate.patience)
        return r.Hold(**about, because="patience") if is_late and not decided.held_because else None
    soak_ms = duration_ms(gate.soak)
    since_ms = decided.held_ms if is_soaking else now_ms
    if now_ms >= since_ms + soak_ms and len(decided.passed_by) >= gate.approve:
        return r.Pass(**about)
    return None if is_soaking else r.Hold(**about, because="gate")


def _deadlines(campaign: Campaign, plan: Plan) -> list[int]:
    """The instants at which a decision may be due."""
    decided = campaign.decided
    match decided.stage:
        case Stage.PROPOSED:
            return [plan.starts_ms] if decided.is_approved else []
        case Stage.PAUSED:
            return [plan.ends_ms]
        case Stage.RUNNING | Stage.HELD:
            gate = plan.waves[decided.wave].gate
            soak = [decided.held_ms + duration_ms(gate.soak)] if decided.held_because == "gate" else []
            patience = [] if gate.patience is None else [decided.opened_ms + duration_ms(gate.patience)]
            return [plan.ends_ms, *soak, *patience]
    return []


class _Target(NamedTuple):
    """A target that may be released now. The order of these is that of releases: who has waited longest, then the draw."""

    since: int
    wave: int
    place: int
    vin: str
    until_ms: int | None


class _Ready(NamedTuple):
    """The targets that may be released now, and the instants at which there may be others."""

    targets: list[_Target]
    wakes: list[int]


def _ready(campaign: Campaign, plan: Plan, now_ms: int, asked: Iterable[str], policy: Policy) -> _Ready:
    spans: dict[str, Span] = {}
    targets: list[_Target] = []
    retries: list[int] = []
    for vin in asked:
        standing = campaign.standings.get(vin)
        if standing is None or standing.status is not Status.WAITING:
            continue
        member = campaign.members[vin]
        if member.wave > campaign.decided.wave:
            continue
        if standing.not_before_ms > now_ms:
            retries.append(standing.not_before_ms)
            continue
        until_ms = None
        if plan.window is not None:
            zone = plan.window.zone_of(member.zone)
            span = spans.get(zone) or spans.setdefault(zone, span_at(plan.window, zone, now_ms))
            if not span.is_open or span.until_ms - now_ms < policy.ack_deadline_ms:
                continue
            until_ms = span.until_ms
        targets.append(_Target(standing.since, member.wave, member.place, vin, until_ms))
    return _Ready(targets, [*retries, *(span.until_ms for span in spans.values())])


def _releases(campaign: Campaign, targets: Iterable[_Target], policy: Policy) -> list[Release]:
    """The targets in their order, divided by wave, by the end of their window, and by size."""
    groups: dict[tuple[int, int | None], list[str]] = {}
    for target in targets:
        groups.setdefault((target.wave, target.until_ms), []).append(target.vin)
    parts = [
        (wave, until_ms, tuple(vins[first : first + policy.max_vins]))
        for (wave, until_ms), vins in groups.items()
        for first in range(0, len(vins), policy.max_vins)
    ]
    return [Release(wave, campaign.steps + number, until_ms, vins) for number, (wave, until_ms, vins) in enumerate(parts, 1)]


def _totals(campaign: Campaign) -> r.Counts:
    return {status.value: number for status in Status if (number := campaign.total(status))}
