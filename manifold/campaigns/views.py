"""Views of a campaign's state for people, as JSON values: a summary, its targets, its orders, its forecast."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from msgspec.structs import replace

from manifold.campaigns.decided import Amendment
from manifold.campaigns.fold import Campaign
from manifold.campaigns.forecast import Forecast, Quantiles
from manifold.campaigns.gates import SUCCESSES, counts_of
from manifold.campaigns.ledger import Ledger
from manifold.campaigns.membership import Roster, assign
from manifold.campaigns.proof import order_summary, wave_counts
from manifold.campaigns.rate import released_in_minute
from manifold.campaigns.standing import CODES, STATUSES, WAITING, Status
from manifold.contracts.campaigns import Command
from manifold.contracts.messages import Refused
from manifold.contracts.seq import datetime_of


def summary(name: str, campaign: Campaign, now_ms: int) -> dict[str, Any]:
    """Return the state of a campaign: stage and reason, counts by wave and by status, and the current rate."""
    decided = campaign.decided
    plan = decided.plan
    waves = wave_counts(campaign)
    states = Counter[str]()
    for wave in waves:
        states.update(wave["states"])
    per_minute = None if plan is None or plan.rate is None else plan.per_minute(campaign.total(*SUCCESSES))
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
        "waves": [wave | _gate_counts(campaign, index) for index, wave in enumerate(waves)],
        "rate": {"per_minute": per_minute, "last_60_s": released_in_minute(campaign.recent, now_ms)},
        "tripped": sorted(decided.tripped),
        "amendment": None if decided.amendment is None else _amendment(decided.amendment),
        "newest_seq": campaign.newest,
    }


def targets(
    campaign: Campaign, *, state: Status | None = None, wave: int | None = None, after: str = "", limit: int = 100
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of the targets in the order of waves and draw, and the VIN after which the next page begins (None: no more).

    Raises:
        LookupError: `after` is not a target.
    """
    roster = roster_of(campaign)
    # A proposal has no roster of its own, and all its targets wait.
    status = campaign.ledger.status if len(campaign.roster) else np.full(len(roster), WAITING, np.int8)
    waiting_status = campaign.settled_by_the_end(Status.WAITING)
    if waiting_status is not Status.WAITING:
        status = np.where(status == WAITING, CODES[waiting_status], status)
    is_chosen = np.ones(len(roster), bool)
    if state is not None:
        is_chosen &= status == CODES[state]
    if wave is not None:
        is_chosen &= roster.waves == wave
    if after:
        is_chosen[: roster.number_of[after] + 1] = False
    # One target more than fits shows whether there is another page.
    numbers = is_chosen.nonzero()[0][: limit + 1].tolist()
    page = [_target(campaign, roster, number, STATUSES[int(status[number])]) for number in numbers[:limit]]
    next_after = page[-1]["vin"] if len(numbers) > limit else None
    return page, next_after


def events(campaign: Campaign, *, after: int = 0, limit: int = 100) -> tuple[list[dict[str, Any]], int | None]:
    """Return a page of the recorded orders, oldest first, and the seq after which the next page begins (None: no more)."""
    ignored = dict(campaign.decided.ignored)
    seqs = sorted(seq for seq in campaign.orders if seq > after)
    page_seqs = seqs[:limit]
    page = [_event(seq, campaign.orders[seq], ignored) for seq in page_seqs]
    next_after = page_seqs[-1] if len(seqs) > limit else None
    return page, next_after


def of_vehicle(campaigns: Mapping[str, Campaign], vin: str) -> list[dict[str, Any]]:
    """Return the campaigns of which a vehicle is a target, oldest proposal first, each with the state of the target."""
    return list(_of_vehicle(campaigns, vin))


def in_order(campaigns: Mapping[str, Campaign]) -> Iterator[tuple[str, Campaign]]:
    """Yield the campaigns that have a plan, oldest proposal first."""
    # Sorted by the seq of the first order, then by name. No two names are equal, so the campaigns themselves are not compared.
    proposed = [
        (min(campaign.orders), name, campaign) for name, campaign in campaigns.items() if campaign.decided.plan is not None
    ]
    for _, name, campaign in sorted(proposed):
        yield name, campaign


def with_targets(campaign: Campaign) -> Campaign:
    """Return the campaign with its roster. The roster of a proposal is drawn as if it were approved now."""
    if len(campaign.roster):
        return campaign
    ledger = Ledger(roster_of(campaign))
    return replace(campaign, ledger=ledger, tallies=tuple(ledger.tallies()))


def forecast_view(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast with its instants as datetimes."""
    delivered = {str(percent): _quantiles(times) for percent, times in forecast.delivered.items()}
    return {"delivered": delivered, "end": _quantiles(forecast.end), "never": forecast.never, "draws": forecast.draws}


def roster_of(campaign: Campaign) -> Roster:
    """Return the campaign's roster. The roster of a proposal is drawn as if it were approved now.

    It is empty if the waves do not fit the list of targets.
    """
    plan = campaign.decided.plan
    if len(campaign.roster) or plan is None:
        return campaign.roster
    members = assign(plan, campaign.decided.targets)
    return Roster() if isinstance(members, Refused) else Roster(members)


def _event(seq: int, order: Command, ignored: Mapping[int, str]) -> dict[str, Any]:
    """Return a recorded order: the fields that all orders have, and the other fields as `details`."""
    details = order_summary(seq, order, ignored)
    del details["at_ms"]
    common = {field: details.pop(field, None) for field in ("seq", "do", "by", "why", "without_effect")}
    return common | {"at": datetime_of(seq), "details": details}


def _of_vehicle(campaigns: Mapping[str, Campaign], vin: str) -> Iterator[dict[str, Any]]:
    """Yield the campaigns of which a vehicle is a target. All targets of a proposal, which has no roster of its own, wait."""
    for name, campaign in in_order(campaigns):
        if vin in campaign.roster:
            roster, status = campaign.roster, campaign.status_of(vin)
        elif campaign.decided.is_proposal and _may_be_listed(campaign, vin):
            roster, status = roster_of(campaign), Status.WAITING
        else:
            continue
        if vin in roster:  # a listed vehicle may fit into no wave
            target = _target(campaign, roster, roster.number_of[vin], status)
            yield {"campaign": name, "campaign_state": str(campaign.decided.stage)} | target


def _may_be_listed(campaign: Campaign, vin: str) -> bool:
    """Whether a proposal names this vehicle. This is far cheaper than a draw, which is needed for the vehicle's wave."""
    plan = campaign.decided.plan
    if any(target.vin == vin for target in campaign.decided.targets):
        return True
    return plan is not None and any(vin in wave.vins for wave in plan.waves)


def _target(campaign: Campaign, roster: Roster, number: int, status: Status) -> dict[str, Any]:
    """Return the target that has this number in the roster. The roster may be that of a proposal, which has no ledger yet."""
    vin, wave = roster.vins[number], int(roster.waves[number])
    plan = campaign.decided.plan
    assert plan is not None
    since_seq = not_before_ms = 0  # 0: since the beginning, and at any time
    if len(campaign.roster):
        since_seq = int(campaign.ledger.since[number])
        not_before_ms = int(campaign.ledger.not_before_ms[number])
    return {
        "vin": vin,
        "wave": wave,
        "wave_name": plan.waves[wave].name,
        "zone": roster.zone_of(vin),
        "state": str(status),
        "since": datetime_of(since_seq) if since_seq else None,
        "not_before": _datetime_of(not_before_ms) if not_before_ms else None,
    }


def _quantiles(times: Quantiles) -> dict[str, datetime | None]:
    return {"p10": _datetime_of(times.p10), "p50": _datetime_of(times.p50), "p90": _datetime_of(times.p90)}


def _datetime_of(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


def _gate_counts(campaign: Campaign, wave: int) -> dict[str, Any]:
    """Return the counts that the gate of a wave compares with the shares in the plan."""
    counts = counts_of(campaign, wave)
    return {name: counts[name] for name in ("released", "known", "success")}


def _amendment(amendment: Amendment) -> dict[str, Any]:
    return {"by": amendment.by, "widens": list(amendment.widened), "approved_by": sorted(amendment.approved_by)}
