"""Views of a campaign's state for people: a summary, its targets, its orders. Values are those of JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from msgspec.structs import replace

from manifold.campaigns.fold import Campaign
from manifold.campaigns.forecast import Forecast, Quantiles
from manifold.campaigns.gates import SUCCESSES, counts_of
from manifold.campaigns.ledger import Ledger
from manifold.campaigns.membership import Roster, assign
from manifold.campaigns.proof import order_summary, wave_counts
from manifold.campaigns.rate import MINUTE_MS
from manifold.campaigns.standing import CODES, STATUSES, WAITING, Status
from manifold.contracts.campaigns import Command
from manifold.contracts.messages import Refused
from manifold.contracts.seq import datetime_of


def summary(name: str, campaign: Campaign, now_ms: int) -> dict[str, Any]:
    """The state of a campaign as JSON values: stage and reason, counts by wave and by status, and the current rate."""
    decided = campaign.decided
    plan = decided.plan
    waves = wave_counts(campaign)
    states = Counter[str]()
    for wave in waves:
        states.update(wave["states"])
    return {
        "campaign": name,
        "state": str(decided.stage),
        "because": campaign.problem or decided.because,
        "version": decided.version,
        "data_id": plan.data_id if plan else None,
        "plan_sha256": decided.plan_sha256,
        "proposed_at": datetime_of(min(campaign.orders)) if campaign.orders else None,
        "authors": sorted(decided.authors),
        "approved_by": sorted(decided.approved_by),
        "approvals_needed": plan.approve.people if plan else 0,
        "targets": len(campaign.roster) or len(decided.targets),  # a proposal has no roster yet
        "states": dict(sorted(states.items())),
        "wave": decided.wave,
        "waves": [wave | _gate(campaign, place) for place, wave in enumerate(waves)],
        "rate": {
            # A rate may rise with the successes so far.
            "per_minute": None if plan is None or plan.rate is None else plan.per_minute(campaign.total(*SUCCESSES)),
            "last_60_s": sum(number for at_ms, _, number in campaign.recent if at_ms > now_ms - MINUTE_MS),
        },
        "tripped": sorted(decided.tripped),
        "amendment": None
        if decided.amendment is None
        else {
            "by": decided.amendment.by,
            "widens": list(decided.amendment.widened),
            "approved_by": sorted(decided.amendment.approved_by),
        },
        "newest_seq": campaign.newest,
    }


def targets(
    campaign: Campaign, *, state: Status | None = None, wave: int | None = None, after: str = "", limit: int = 100
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the targets, in the order of waves and draw, and the VIN after which the next one begins.

    Raises:
        LookupError: `after` is not a target.
    """
    roster = roster_of(campaign)
    status = campaign.ledger.status if len(campaign.roster) else np.full(len(roster), WAITING, np.int8)
    if campaign.settled_by_the_end(Status.WAITING) is not Status.WAITING:
        status = np.where(status == WAITING, CODES[campaign.settled_by_the_end(Status.WAITING)], status)
    chosen = np.ones(len(roster), bool)
    if state is not None:
        chosen &= status == CODES[state]
    if wave is not None:
        chosen &= roster.waves == wave
    if after:
        chosen[: roster.number_of[after] + 1] = False
    numbers = chosen.nonzero()[0][: limit + 1].tolist()
    page = [_target(campaign, roster, number, str(STATUSES[int(status[number])])) for number in numbers[:limit]]
    return page, page[-1]["vin"] if len(numbers) > limit else None


def events(campaign: Campaign, *, after: int = 0, limit: int = 100) -> tuple[list[dict[str, Any]], int | None]:
    """A page of the recorded orders, oldest first, and the seq after which the next one begins."""
    ignored = dict(campaign.decided.ignored)
    seqs = sorted(seq for seq in campaign.orders if seq > after)
    page = [_event(seq, campaign.orders[seq], ignored) for seq in seqs[:limit]]
    return page, seqs[limit - 1] if len(seqs) > limit else None


def of_vehicle(campaigns: Mapping[str, Campaign], vin: str) -> list[dict[str, Any]]:
    """The campaigns that a vehicle is a target of, oldest proposal first."""
    return list(_of_vehicle(campaigns, vin))


def in_order(campaigns: Mapping[str, Campaign]) -> Iterator[tuple[str, Campaign]]:
    """The campaigns that have a plan, oldest proposal first."""
    return iter(sorted(((n, c) for n, c in campaigns.items() if c.decided.plan), key=lambda each: (min(each[1].orders), each[0])))


def with_targets(campaign: Campaign) -> Campaign:
    """The campaign with its targets by wave, also if it is a proposal."""
    if len(campaign.roster):
        return campaign
    ledger = Ledger(roster_of(campaign))
    return replace(campaign, ledger=ledger, tallies=tuple(ledger.tallies()))


def forecast_view(found: Forecast) -> dict[str, Any]:
    """A forecast with instants."""
    delivered = {str(percent): _quantiles(times) for percent, times in found.delivered.items()}
    return {"delivered": delivered, "end": _quantiles(found.end), "never": found.never, "draws": found.draws}


def roster_of(campaign: Campaign) -> Roster:
    """Return the campaign's roster; of a proposal, the one that would be drawn now, which is empty if its waves do not fit."""
    plan = campaign.decided.plan
    if len(campaign.roster) or plan is None:
        return campaign.roster
    waves = assign(plan, campaign.decided.targets)
    return Roster() if isinstance(waves, Refused) else Roster(waves)


def _event(seq: int, order: Command, ignored: Mapping[int, str]) -> dict[str, Any]:
    view = order_summary(seq, order, ignored)
    known = {name: view.pop(name, None) for name in ("seq", "do", "by", "why", "without_effect")}
    del view["at_ms"]
    return known | {"at": datetime_of(seq), "details": view}


def _of_vehicle(campaigns: Mapping[str, Campaign], vin: str) -> Iterator[dict[str, Any]]:
    for name, campaign in in_order(campaigns):
        roster, state = campaign.roster, Status.WAITING
        if vin in roster:
            state = campaign.status_of(vin)
        elif campaign.decided.is_proposal and _may_be_listed(campaign, vin):
            roster = roster_of(campaign)
        if vin in roster:
            view = _target(campaign, roster, roster.number_of[vin], str(state))
            yield {"campaign": name, "campaign_state": str(campaign.decided.stage)} | view


def _may_be_listed(campaign: Campaign, vin: str) -> bool:
    """Whether a proposal names this vehicle; a draw, which gives its wave, costs far more."""
    plan = campaign.decided.plan
    named = (wave.vins for wave in plan.waves) if plan is not None else ()
    return any(target.vin == vin for target in campaign.decided.targets) or any(vin in vins for vins in named)


def _target(campaign: Campaign, roster: Roster, number: int, state: str) -> dict[str, Any]:
    vin, wave = roster.vins[number], int(roster.waves[number])
    plan, since, not_before_ms = campaign.decided.plan, 0, 0
    if len(campaign.roster):
        since, not_before_ms = int(campaign.ledger.since[number]), int(campaign.ledger.not_before_ms[number])
    assert plan is not None
    return {
        "vin": vin,
        "wave": wave,
        "wave_name": plan.waves[wave].name,
        "zone": roster.zone_of(vin),
        "state": state,
        "since": datetime_of(since) if since else None,
        "not_before": _datetime_of(not_before_ms or None),
    }


def _quantiles(times: Quantiles) -> dict[str, datetime | None]:
    return {"p10": _datetime_of(times.p10), "p50": _datetime_of(times.p50), "p90": _datetime_of(times.p90)}


def _datetime_of(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


def _gate(campaign: Campaign, wave: int) -> dict[str, Any]:
    """The counts that the gate of a wave compares; the plan has their limits."""
    counts = counts_of(campaign, wave)
    return {name: counts[name] for name in ("released", "known", "success")}
