"""Decides about a campaign at one instant: returns the effects that follow from its state. Pure: no await, no clock, no Redis.

A decision changes the state only when its record is folded. So `step` returns either a single decision or only releases, and the
caller folds their records before it calls `step` again.
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
    """Parameters that do not depend on the campaign: the name and epoch of the campaigner, and the platform's limits."""

    by: str = f"{r.CAMPAIGNER}0"
    epoch: int = 0
    ack_deadline_ms: int = 30_000  # a target is released only if its window stays open for at least this long
    max_vins: int = 100_000  # in one release


class Release(Struct, frozen=True):
    """Publish a trigger that names these vehicles."""

    wave: int
    step: int  # the number of the release within the campaign
    until_ms: int | None  # when the vehicles' window ends (Unix ms); None: the plan has no window
    vins: tuple[str, ...]


class Decide(Struct, frozen=True):
    """Publish an order of the campaigner."""

    command: r.Command


class Wake(Struct, frozen=True):
    """Call `step` again at this instant (Unix ms), or earlier if a fact is recorded or a vehicle connects."""

    at_ms: int


MIN_SILENCE_STEP_MS = 10_000  # the least time between two records of silent vehicles
Effect = Release | Decide | Wake
_REACTIONS: dict[str, type[r.Pause | r.Cancel | r.Note]] = {"pause": r.Pause, "cancel": r.Cancel, "alert": r.Note}


def step(campaign: Campaign, now_ms: int, connected: Collection[str], policy: Policy) -> list[Effect]:
    """Return the effects that are due at `now_ms` (Unix ms).

    `connected` are the VINs of connected vehicles; those that are not targets are ignored.
    """
    plan = campaign.decided.plan
    if plan is None:  # nothing is proposed yet
        return []
    decision = _decision(campaign, plan, now_ms, policy)
    if decision is not None:
        return [Decide(decision)]
    effects: list[Effect] = []
    wakes = _deadlines(campaign, plan)
    if campaign.decided.stage in RELEASING:
        releasable_vins = None if plan.away == "queue" else connected  # None: all targets
        ready = _ready(campaign, plan, now_ms, releasable_vins, policy)
        allowed = _allowed(campaign, plan, now_ms)
        effects += _releases(campaign, ready, allowed, policy)
        wakes += ready.wakes
        if len(ready.numbers) > allowed:
            wakes.append(next_allowance_ms(campaign.recent, now_ms))
    future_wakes = [at_ms for at_ms in wakes if at_ms > now_ms]
    if future_wakes:
        effects.append(Wake(min(future_wakes)))
    return effects


def candidates(campaign: Campaign, now_ms: int, policy: Policy) -> tuple[list[str], int]:
    """Return the VINs of the targets that may be released at `now_ms` if they are connected, and how many the rate allows.

    The VINs are in the order of release. If the rate allows no release, the list is empty.
    """
    plan = campaign.decided.plan
    if plan is None or campaign.decided.stage not in RELEASING:
        return [], 0
    allowed = _allowed(campaign, plan, now_ms)
    if not allowed:
        return [], 0
    vins = campaign.roster.vins
    ready = _ready(campaign, plan, now_ms, None, policy)
    return [vins[number] for number in ready.numbers.tolist()], allowed


def _allowed(campaign: Campaign, plan: Plan, now_ms: int) -> int:
    """Return how many targets the rate allows to release at `now_ms`."""
    per_minute = plan.per_minute(campaign.total(*gates.SUCCESSES))
    return allowance(campaign.recent, per_minute, now_ms)


def _decision(campaign: Campaign, plan: Plan, now_ms: int, policy: Policy) -> r.Command | None:
    """Return the order that the campaigner has to publish now, or None. If several are due, the first in this function counts."""
    decided = campaign.decided
    common: dict[str, Any] = {"campaign": plan.campaign, "by": policy.by, "epoch": policy.epoch, "seen": campaign.newest}
    if decided.stage is Stage.PROPOSED:
        may_start = decided.is_approved and campaign.problem is None and plan.starts_ms <= now_ms < plan.ends_ms
        return r.Start(**common) if may_start else None
    # A pause delays neither the end of the plan nor the record of silent vehicles.
    if decided.unpaused_stage in RELEASING and now_ms >= plan.ends_ms:
        return r.Complete(**common, because="ends", counts=totals(campaign))
    silence_due_ms = _silence_due_ms(campaign, plan)
    if silence_due_ms is not None and now_ms >= silence_due_ms:
        return r.Silent(**common, before_ms=now_ms - plan.success.within_ms)
    if decided.stage not in RELEASING:  # paused or over: no rule stops it, and no gate opens
        return None
    tripped = gates.tripped(campaign, now_ms)
    if tripped is not None:
        return _REACTIONS[tripped.rule.then](**common, rule=tripped.rule.name, counts=tripped.counts)
    if not campaign.total(*UNSETTLED):
        return r.Complete(**common, because="settled", counts=totals(campaign))
    if decided.wave + 1 == len(plan.waves):  # the last wave is open, so there is no gate to pass
        return None
    return _gate_decision(campaign, plan.waves[decided.wave], now_ms, common)


def _gate_decision(campaign: Campaign, wave: Wave, now_ms: int, common: dict[str, Any]) -> r.Command | None:
    """Return the order about the gate of the open wave, or None if none is due.

    A gate whose conditions are met is held until its soak is over and enough people have approved; then it passes. If its
    conditions break before that, the hold ends. A gate whose conditions are not met within its patience is held because of
    "patience" until they are met. `common` are the fields that all orders of the campaigner have.
    """
    decided, gate = campaign.decided, wave.gate
    counts = gates.counts_of(campaign, decided.wave)
    fields: dict[str, Any] = {**common, "wave": decided.wave, "counts": counts}
    is_soaking = decided.held_because == "gate"
    if not gates.is_met(gate, counts):
        if is_soaking:
            return r.Unhold(**fields)
        is_late = gate.patience is not None and now_ms >= decided.opened_ms + duration_ms(gate.patience)
        is_held_already = bool(decided.held_because)
        return r.Hold(**fields, because="patience") if is_late and not is_held_already else None
    met_since_ms = decided.held_ms if is_soaking else now_ms
    is_soaked = now_ms >= met_since_ms + duration_ms(gate.soak)
    if is_soaked and len(decided.passed_by) >= gate.approve:
        return r.Pass(**fields)
    return None if is_soaking else r.Hold(**fields, because="gate")


def _silence_due_ms(campaign: Campaign, plan: Plan) -> int | None:
    """Return when the vehicle whose answer is awaited longest counts as silent (Unix ms), or None if no answer is awaited.

    The instant is rounded up to a multiple of a time step, so that one record covers many silent vehicles.
    """
    if plan.success.by != "answer" or campaign.decided.unpaused_stage not in RELEASING:
        return None
    since_ms = campaign.ledger.unanswered_since_ms(campaign.decided.terms)
    if since_ms is None:
        return None
    step_ms = max(MIN_SILENCE_STEP_MS, plan.success.within_ms // 60)
    due_ms = since_ms + plan.success.within_ms
    return -(-due_ms // step_ms) * step_ms  # -(-a // b) divides and rounds up


def _deadlines(campaign: Campaign, plan: Plan) -> list[int]:
    """Return the instants (Unix ms) at which a decision may be due by time alone. They may be in the past."""
    decided = campaign.decided
    if decided.stage is Stage.PROPOSED:
        return [plan.starts_ms] if decided.is_approved else []
    if decided.unpaused_stage not in RELEASING:  # it is over, or it is a paused proposal, which only people can resume
        return []
    deadlines = [plan.ends_ms]
    silence_due_ms = _silence_due_ms(campaign, plan)
    if silence_due_ms is not None:
        deadlines.append(silence_due_ms)
    if decided.stage in RELEASING:
        gate = plan.waves[decided.wave].gate
        if decided.held_because == "gate":
            deadlines.append(decided.held_ms + duration_ms(gate.soak))
        if gate.patience is not None:
            deadlines.append(decided.opened_ms + duration_ms(gate.patience))
    return deadlines


# Values of an array of window ends that are no instants.
_NO_WINDOW = -1  # the plan has no window
_CLOSED = 0  # nothing may be released now


class _Ready(NamedTuple):
    """The targets that may be released now, and when more targets may become ready."""

    numbers: Numbers  # target numbers in the order of release: those that have waited longest first, then by wave and draw
    until_ms: Numbers  # for each of these targets, when its window ends (Unix ms), or `_NO_WINDOW`
    wakes: list[int]  # the instants (Unix ms) at which more targets may become ready


def _ready(campaign: Campaign, plan: Plan, now_ms: int, vins: Collection[str] | None, policy: Policy) -> _Ready:
    """Return which of the targets among `vins` may be released at `now_ms`; with None, which of all targets may be released."""
    roster, ledger = campaign.roster, campaign.ledger
    numbers = np.arange(len(roster)) if vins is None else roster.numbers(vins)
    is_waiting = ledger.status[numbers] == WAITING
    is_in_open_wave = roster.waves[numbers] <= campaign.decided.wave
    numbers = numbers[is_waiting & is_in_open_wave]
    wakes: list[int] = []
    is_early = ledger.not_before_ms[numbers] > now_ms
    if is_early.any():
        wakes.append(int(ledger.not_before_ms[numbers[is_early]].min()))
    numbers = numbers[~is_early]
    until_ms = np.full(len(numbers), _NO_WINDOW, np.int64)
    if plan.window is not None:
        ends_by_zone, window_changes = _window_ends(campaign, plan.window, now_ms, numbers, policy)
        wakes += window_changes
        until_ms = ends_by_zone[roster.zones[numbers]]
        is_open = until_ms != _CLOSED
        numbers, until_ms = numbers[is_open], until_ms[is_open]
    order = np.argsort(ledger.since[numbers], kind="stable")
    return _Ready(numbers[order], until_ms[order], wakes)


def _window_ends(campaign: Campaign, window: Window, now_ms: int, numbers: Numbers, policy: Policy) -> tuple[Numbers, list[int]]:
    """Return when the present window of each zone ends (Unix ms), and the instants at which a window opens or ends next.

    The ends are in the order of `Roster.zone_names`. An end is `_CLOSED` if the window is closed, if it ends before a release
    could be acknowledged, or if none of the targets `numbers` is listed with the zone.
    """
    roster = campaign.roster
    ends_by_zone = np.full(len(roster.zone_names), _CLOSED, np.int64)
    spans: dict[str, Span] = {}  # by the zone whose clock counts, which may be the same for several listed zones
    for zone_code in np.unique(roster.zones[numbers]).tolist():
        listed_zone = roster.zone_names[zone_code]
        zone = window.zone_of(listed_zone)
        if zone not in spans:
            spans[zone] = span_at(window, zone, now_ms)
        span = spans[zone]
        if span.is_open and span.until_ms - now_ms >= policy.ack_deadline_ms:
            ends_by_zone[zone_code] = span.until_ms
    return ends_by_zone, [span.until_ms for span in spans.values()]


def _releases(campaign: Campaign, ready: _Ready, allowed: int, policy: Policy) -> list[Release]:
    """Return releases of the first `allowed` ready targets.

    A release contains targets of one wave whose windows end together, and at most `policy.max_vins` of them.
    """
    numbers = ready.numbers[:allowed]
    waves = campaign.roster.waves[numbers].tolist()
    window_ends = ready.until_ms[:allowed].tolist()
    roster_vins = campaign.roster.vins
    groups: dict[tuple[int, int], list[str]] = {}
    for number, wave, until_ms in zip(numbers.tolist(), waves, window_ends, strict=True):
        groups.setdefault((wave, until_ms), []).append(roster_vins[number])
    releases: list[Release] = []
    for (wave, until_ms), vins in groups.items():
        for start in range(0, len(vins), policy.max_vins):
            step_number = campaign.last_step + len(releases) + 1
            part = tuple(vins[start : start + policy.max_vins])
            releases.append(Release(wave, step_number, None if until_ms == _NO_WINDOW else until_ms, part))
    return releases


def totals(campaign: Campaign) -> r.Counts:
    """Return the number of targets by status, without statuses that no target has."""
    number_of = {status: campaign.total(status) for status in Status}
    return {status.value: number for status, number in number_of.items() if number}
