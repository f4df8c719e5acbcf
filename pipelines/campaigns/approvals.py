"""Finds the approvals that campaigns wait for, and writes the question that an approver answers."""

from collections.abc import Iterator, Mapping
from typing import Any

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.campaigns.api import Api

OPEN_STATES = ("proposed", "running", "held", "paused")
MAX_WARNINGS = 20
Json = Mapping[str, Any]


def missing_approvals(settings: Settings) -> list[dict[str, Any]]:
    """Return the DAG runs to trigger, one for each approval that a campaign waits for.

    Each has its `trigger_run_id` and its parameters as `conf`. The id contains the approval and the number of approvals that the
    campaign has been given (`answers`), so an approval is asked for once, and again only after somebody has approved.
    """
    api = Api(settings)
    runs = []
    for state in api.get("/campaigns")["campaigns"]:
        if state["state"] not in OPEN_STATES:
            continue
        campaign = state["campaign"]
        for approval in api.get(f"/campaigns/{campaign}/plan")["asks"]:
            wave = "" if approval["wave"] is None else str(approval["wave"])
            run_id = f"{campaign}__{approval['what']}_{wave}_{approval['plan_sha256'][:12]}_{approval['answers']}"
            runs.append({"trigger_run_id": run_id, "conf": {"campaign": campaign, "wave": approval["wave"]}})
    return runs


def question(settings: Settings, campaign: str, wave: int | None) -> dict[str, str]:
    """Write the question to an approver: whether to approve the gate of `wave` or, if it is None, the plan or its amendment.

    Return `subject`, `body` (Markdown) and `plan_sha256`, the digest of the plan that the question shows.

    Raises:
        Permanent: the campaign does not wait for this approval, or no longer.
    """
    api = Api(settings)
    state = api.get(f"/campaigns/{campaign}")
    plan_response = api.get(f"/campaigns/{campaign}/plan")
    approvals = [approval for approval in plan_response["asks"] if approval["wave"] == wave]
    if not approvals:
        subject = "the plan" if wave is None else f"the gate of wave {wave}"
        raise Permanent(f"{campaign} asks nobody to approve {subject}: it is {state['state']}, because {state['because']}")
    approval = approvals[0]
    subject_by_kind = {"plan": "the plan", "amendment": "the amended plan", "gate": f"the gate of wave {wave}"}
    return {
        "subject": f"Approve {subject_by_kind[approval['what']]} of {campaign}?",
        "body": "\n".join(_body(state, plan_response, approval)),
        "plan_sha256": approval["plan_sha256"],
    }


def _body(state: Json, plan_response: Json, approval: Json) -> Iterator[str]:
    """Yield the lines of the question: the campaign, its approvals, a table of its waves, its rules, and warnings."""
    plan = plan_response["amended"] or plan_response["plan"]
    yield f"**{state['campaign']}** sends `{plan['data_id']}` to {state['targets']:,} vehicles until {plan['ends']}."
    yield f"It is {state['state']}: {state['because']}. Author: {', '.join(state['authors'])}."
    approvers = ", ".join(approval["approved_by"]) or "nobody"
    yield f"Approved by {approvers} so far; {approval['needed']} have to, and no author of the plan."
    if plan_response["amended"]:
        yield f"\nThe amendment widens **{', '.join(state['amendment']['widens'])}**."
    yield "\n| wave | targets | released | known | success | gate to the next |\n|---|---|---|---|---|---|"
    sizes, wave_states = plan_response["waves"], state["waves"]  # an amendment may have waves that are not in these lists
    last_number = len(plan["waves"]) - 1
    for number, wave in enumerate(plan["waves"]):
        size = f"{sizes[number]:,}" if number < len(sizes) else "–"
        wave_state = wave_states[number] if number < len(wave_states) else {}
        counts = " | ".join(str(wave_state.get(name, "–")) for name in ("released", "known", "success"))
        gate = "–" if number == last_number else _gate(wave["gate"])
        yield f"| {wave['name']} | {size} | {counts} | {gate} |"
    yield f"\nRate: {_rate(plan['rate'])}. Window: {_window(plan['window'])}."
    for rule in plan_response["rules"]:
        counts = f"{rule['count']} of {rule['known']} known"
        yield f"\nRule {rule['name']}: {rule['then']} over {rule['over']} in {rule['in']}; now {counts}."
    for warning in plan_response["warnings"][:MAX_WARNINGS]:
        yield f"\n⚠ {warning}"


def _gate(gate: Json) -> str:
    """The conditions of a gate in words, such as "success 95%, soak 1h". A condition of zero is left out: it always holds."""
    nonzero = [name for name in ("released", "known", "success", "soak") if gate[name] not in ("0%", "0s")]
    conditions = [f"{name} {gate[name]}" for name in nonzero]
    if gate["approve"]:
        conditions.append(f"approved by {gate['approve']}")
    return ", ".join(conditions)


def _rate(rate: Any) -> str:
    """The rate of releases in words: none, a number, or a number that grows with successes."""
    if rate is None:
        return "as many as are connected"
    if isinstance(rate, int):
        return f"{rate} a minute"
    return f"{rate['from']} a minute, times {rate['times']} for each {rate['every']} successes, up to {rate['up_to']}"


def _window(window: Json | None) -> str:
    return "always" if window is None else f"{window['from']} to {window['to']}, clock of {window['zone']}"
