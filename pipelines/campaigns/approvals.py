"""Finds the approvals that campaigns wait for, and writes the questions to the approvers."""

from collections.abc import Iterator, Mapping
from typing import Any

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.campaigns.api import Api

OPEN = ("proposed", "running", "held", "paused")
MAX_WARNINGS = 20
Json = Mapping[str, Any]


def missing_approvals(settings: Settings) -> list[dict[str, Any]]:
    """The runs that ask for an approval: each with its id, and its parameters as `conf`. The same question has the same id."""
    api = Api(settings)
    asked = [
        (state["campaign"], ask)
        for state in api.get("/campaigns")["campaigns"]
        if state["state"] in OPEN
        for ask in api.get(f"/campaigns/{state['campaign']}/plan")["asks"]
    ]
    return [
        {
            "trigger_run_id": f"{name}__{ask['what']}_{_or_dash(ask['wave'])}_{ask['plan_sha256'][:12]}_{ask['answers']}",
            "conf": {"campaign": name, "wave": ask["wave"]},
        }
        for name, ask in asked
    ]


def question(settings: Settings, campaign: str, wave: int | None) -> dict[str, str]:
    """Subject and body (Markdown) of a question, and the digest of the plan that it shows: the plan or amendment, or a gate.

    Raises:
        Permanent: this approval is not asked for, or no longer.
    """
    api = Api(settings)
    state, plan_answer = api.get(f"/campaigns/{campaign}"), api.get(f"/campaigns/{campaign}/plan")
    ask = next((ask for ask in plan_answer["asks"] if ask["wave"] == wave), None)
    if ask is None:
        what = "the plan" if wave is None else f"the gate of wave {wave}"
        raise Permanent(f"{campaign} asks nobody to approve {what}: it is {state['state']}, because {state['because']}")
    named = {"plan": "the plan", "amendment": "the amended plan", "gate": f"the gate of wave {wave}"}[ask["what"]]
    return {
        "subject": f"Approve {named} of {campaign}?",
        "body": "\n".join(_body(state, plan_answer, ask)),
        "plan_sha256": ask["plan_sha256"],
    }


def _body(state: Json, plan_answer: Json, ask: Json) -> Iterator[str]:
    plan = plan_answer["amended"] or plan_answer["plan"]
    yield f"**{state['campaign']}** sends `{plan['data_id']}` to {state['targets']:,} vehicles until {plan['ends']}."
    yield f"It is {state['state']}: {state['because']}. Author: {', '.join(state['authors'])}."
    yield f"Approved by {', '.join(ask['approved_by']) or 'nobody'} so far; {ask['needed']} have to, and no author of the plan."
    if plan_answer["amended"]:
        yield f"\nThe amendment widens **{', '.join(state['amendment']['widens'])}**."
    yield "\n| wave | targets | released | known | success | gate to the next |\n|---|---|---|---|---|---|"
    for place, wave in enumerate(plan["waves"]):
        size = f"{plan_answer['waves'][place]:,}" if place < len(plan_answer["waves"]) else "–"
        now = state["waves"][place] if place < len(state["waves"]) else {}
        counts = " | ".join(str(now.get(name, "–")) for name in ("released", "known", "success"))
        yield f"| {wave['name']} | {size} | {counts} | {_gate(wave['gate']) if wave is not plan['waves'][-1] else '–'} |"
    yield f"\nRate: {_rate(plan['rate'])}. Window: {_window(plan['window'])}."
    for rule in plan_answer["rules"]:
        counts = f"{rule['count']} of {rule['known']} known"
        yield f"\nRule {rule['name']}: {rule['then']} over {rule['over']} in {rule['in']}; now {counts}."
    for warning in plan_answer["warnings"][:MAX_WARNINGS]:
        yield f"\n⚠ {warning}"


def _gate(gate: Json) -> str:
    asked = [f"{name} {gate[name]}" for name in ("released", "known", "success", "soak") if gate[name] not in ("0%", "0s")]
    return ", ".join([*asked, *([f"approved by {gate['approve']}"] if gate["approve"] else [])])


def _rate(rate: Any) -> str:
    if rate is None:
        return "as many as are connected"
    if isinstance(rate, int):
        return f"{rate} a minute"
    return f"{rate['from']} a minute, times {rate['times']} for each {rate['every']} successes, up to {rate['up_to']}"


def _window(window: Json | None) -> str:
    return "always" if window is None else f"{window['from']} to {window['to']}, clock of {window['zone']}"


def _or_dash(wave: int | None) -> str:
    return "" if wave is None else str(wave)
