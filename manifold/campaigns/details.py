"""The details that an approver reads: the plan in force, the present counts of its rules, warnings, and missing approvals."""

from typing import Any

import msgspec

from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.campaigns.gates import rule_counts
from manifold.campaigns.plan import Plan
from manifold.campaigns.views import with_targets
from manifold.campaigns.warnings import warnings_of
from manifold.contracts.campaigns import Approve


def details(name: str, campaign: Campaign, now_ms: int) -> dict[str, Any]:
    """The plan, with lists of vehicles as their lengths; the counts of each rule; warnings; and the missing approvals."""
    plan = campaign.decided.plan
    assert plan is not None
    as_drawn = with_targets(campaign)
    return {
        "campaign": name,
        "plan": _plan_json(plan),
        "amended": None if campaign.decided.amendment is None else _plan_json(campaign.decided.amendment.plan),
        "waves": [sum(tally.values()) for tally in as_drawn.tallies],
        "rules": [
            {"name": rule.name, "then": rule.then, "over": str(rule.over), "in": rule.where} | _counts(as_drawn, place, now_ms)
            for place, rule in enumerate(plan.rules)
        ],
        "warnings": warnings_of(as_drawn, now_ms) if as_drawn.tallies else [],
        "asks": asks(campaign),
    }


def asks(campaign: Campaign) -> list[dict[str, Any]]:
    """The approvals that the campaign waits for: of the plan, of an amendment, of a gate. At most one of each."""
    decided = campaign.decided
    plan, amendment = decided.plan, decided.amendment
    if plan is None:
        return []
    asked: dict[str, Any] = {}
    if decided.is_proposal and decided.is_listed and not decided.is_approved:
        asked = {"what": "plan", "wave": None, "plan_sha256": decided.plan_sha256}
        asked |= {"approved_by": sorted(decided.approved_by), "needed": plan.approve.people}
    elif amendment is not None and decided.stage in (Stage.RUNNING, Stage.HELD, Stage.PAUSED):
        asked = {"what": "amendment", "wave": None, "plan_sha256": amendment.plan_sha256}
        asked |= {"approved_by": sorted(amendment.approved_by), "needed": plan.approve.people}
    elif decided.stage is Stage.HELD and len(decided.passed_by) < plan.waves[decided.wave].gate.approve:
        asked = {"what": "gate", "wave": decided.wave, "plan_sha256": decided.plan_sha256}
        asked |= {"approved_by": sorted(decided.passed_by), "needed": plan.waves[decided.wave].gate.approve}
    # The number of approvals on record distinguishes one question from the next.
    answers = sum(isinstance(order, Approve) for order in campaign.orders.values())
    return [asked | {"answers": answers}] if asked else []


def _counts(campaign: Campaign, place: int, now_ms: int) -> dict[str, int]:
    plan = campaign.decided.plan
    assert plan is not None
    rule = plan.rules[place]
    if not campaign.tallies:
        return {"known": 0, "count": 0}
    return dict(rule_counts(campaign, rule, campaign.decided.wave if rule.where == "wave" else None, now_ms))


def _plan_json(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(plan)
    for holder in (document["targets"], *document["waves"]):
        holder["vins"] = None if holder["vins"] is None else len(holder["vins"])
    return document
