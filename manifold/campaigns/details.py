"""The details that an approver reads: the plan in force, the present counts of its rules, warnings, and missing approvals."""

from typing import Any

import msgspec

from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.campaigns.gates import rule_counts
from manifold.campaigns.plan import Plan, Rule
from manifold.campaigns.views import with_targets
from manifold.campaigns.warnings import warnings_of
from manifold.contracts.campaigns import Approve


def details(name: str, campaign: Campaign, now_ms: int) -> dict[str, Any]:
    """Return the plan, the number of targets of each wave, the counts of each rule, warnings, and missing approvals, as JSON."""
    decided = campaign.decided
    assert decided.plan is not None
    drawn = with_targets(campaign)
    return {
        "campaign": name,
        "plan": _plan_json(decided.plan),
        "amended": None if decided.amendment is None else _plan_json(decided.amendment.plan),
        "waves": [sum(tally.values()) for tally in drawn.tallies],
        "rules": [_rule_json(drawn, rule, now_ms) for rule in decided.plan.rules],
        "warnings": warnings_of(drawn, now_ms) if drawn.tallies else [],
        "asks": missing_approvals(campaign),
    }


def missing_approvals(campaign: Campaign) -> list[dict[str, Any]]:
    """Return the approval that the campaign waits for (of its plan, an amendment or a gate) in a list, or an empty list."""
    decided = campaign.decided
    plan, amendment = decided.plan, decided.amendment
    if plan is None:
        return []
    request: dict[str, Any]
    if decided.is_proposal and decided.is_listed and not decided.is_approved:
        request = {"what": "plan", "wave": None, "plan_sha256": decided.plan_sha256}
        request |= {"approved_by": sorted(decided.approved_by), "needed": plan.approve.people}
    elif amendment is not None and decided.stage in (Stage.RUNNING, Stage.HELD, Stage.PAUSED):
        request = {"what": "amendment", "wave": None, "plan_sha256": amendment.plan_sha256}
        request |= {"approved_by": sorted(amendment.approved_by), "needed": plan.approve.people}
    elif decided.stage is Stage.HELD and len(decided.passed_by) < plan.waves[decided.wave].gate.approve:
        request = {"what": "gate", "wave": decided.wave, "plan_sha256": decided.plan_sha256}
        request |= {"approved_by": sorted(decided.passed_by), "needed": plan.waves[decided.wave].gate.approve}
    else:
        return []
    # The number of approvals so far makes each request distinct: if the same approval is requested once more, Airflow needs
    # another id for the DAG run of the new request.
    request["answers"] = sum(isinstance(order, Approve) for order in campaign.orders.values())
    return [request]


def _rule_json(campaign: Campaign, rule: Rule, now_ms: int) -> dict[str, Any]:
    """Return a rule with its present counts: for a rule about single waves, those of the open wave."""
    view: dict[str, Any] = {"name": rule.name, "then": rule.then, "over": str(rule.over), "in": rule.where}
    if not campaign.tallies:
        return view | {"known": 0, "count": 0}
    wave = campaign.decided.wave if rule.where == "wave" else None
    return view | rule_counts(campaign, rule, wave, now_ms)


def _plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values, in which each list of VINs is replaced by its length."""
    document: dict[str, Any] = msgspec.to_builtins(plan)
    for part in (document["targets"], *document["waves"]):
        part["vins"] = None if part["vins"] is None else len(part["vins"])
    return document
