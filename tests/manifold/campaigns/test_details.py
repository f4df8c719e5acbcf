"""What people look at before they approve: which approvals are missing, and what rules count."""

from typing import Any

from manifold.campaigns.details import details, missing_approvals
from manifold.campaigns.facts import Recorded
from manifold.campaigns.fold import Campaign, fold
from manifold.contracts import campaigns as r
from manifold.contracts.seq import seq_of
from tests.manifold.campaigns.plans import NOW, document

NAME, CAMPAIGNER = "maps-47", "campaigner/0"
WAVES = [{"name": "a", "size": 4, "gate": {"approve": 2}}, {"name": "b", "size": "rest"}]
PLAN = document(waves=WAVES, rate=10, approve={"people": 2, "not_the_author": True})
APPROVED = [r.Propose(NAME, "author", plan=PLAN), r.Approve(NAME, "ann"), r.Approve(NAME, "airflow/bob")]
HELD = [*APPROVED, r.Start(NAME, CAMPAIGNER), r.Hold(NAME, CAMPAIGNER)]


def campaign(orders: list[Any]) -> Campaign:
    return fold(Campaign(), [Recorded(seq_of(NOW + place, 0, 0), order) for place, order in enumerate(orders)])


def asked(orders: list[Any]) -> list[tuple[object, ...]]:
    return [
        (ask["what"], ask["wave"], ask["approved_by"], ask["needed"], ask["answers"])
        for ask in missing_approvals(campaign(orders))
    ]


def test_an_approval_is_missing_until_as_many_people_as_asked_have_given_it() -> None:
    assert asked(APPROVED[:1]) == [("plan", None, [], 2, 0)]
    assert asked(APPROVED[:2]) == [("plan", None, ["ann"], 2, 1)]
    assert asked([*APPROVED[:2], r.Approve(NAME, "airflow/ann")]) == [("plan", None, ["ann"], 2, 2)], "asked once more"
    assert asked([*APPROVED[:2], r.Pause(NAME, "carl")]) == [("plan", None, ["ann"], 2, 1)], "a paused one may be approved"
    assert asked(APPROVED) == []


def test_a_gate_that_holds_asks_for_its_approvals() -> None:
    assert asked(HELD) == [("gate", 0, [], 2, 2)]
    assert asked([*HELD, r.Approve(NAME, "airflow/ann", wave=0)]) == [("gate", 0, ["ann"], 2, 3)]
    assert asked([*HELD, r.Approve(NAME, "ann", wave=0), r.Approve(NAME, "bob", wave=0)]) == []


def test_an_amendment_that_allows_more_asks_for_its_approval() -> None:
    widened = campaign([*APPROVED, r.Start(NAME, CAMPAIGNER), r.Amend(NAME, "carl", plan=PLAN | {"rate": 20})])
    told = details(NAME, widened, NOW)

    (ask,) = told["asks"]
    assert (ask["what"], ask["wave"], ask["needed"]) == ("amendment", None, 2)
    assert ask["plan_sha256"] != widened.decided.plan_sha256
    assert (told["plan"]["rate"], told["amended"]["rate"], told["plan"]["targets"]["vins"]) == (10, 20, 10)


def test_a_proposal_whose_list_is_missing_asks_nobody() -> None:
    waiting = PLAN | {"targets": {"file": "fleet.csv"}}

    assert asked([r.Propose(NAME, "author", plan=waiting)]) == []
