"""The brake that a campaign should have, from its orders and the brake that Redis has."""

import pytest

from manifold.campaigns.braking import may_change, required_brake
from manifold.campaigns.decided import Decided, Stage
from manifold.campaigns.facts import Recorded
from manifold.campaigns.fold import Campaign, fold
from manifold.contracts import campaigns as r
from manifold.contracts.brakes import OFF, Brake
from tests.manifold.campaigns.plans import document

PAUSED, LATER = Brake(10, "pause"), Brake(12, "pause")
ORDERS: dict[int, r.Command] = {10: r.Pause("c", "ann"), 11: r.Resume("c", "ann")}


def campaign(stage: Stage) -> Campaign:
    return Campaign(orders=ORDERS, decided=Decided(stage=stage))


@pytest.mark.parametrize(
    ("stage", "known", "right"),
    [
        pytest.param(Stage.RUNNING, PAUSED, Brake(10, OFF), id="a resumed campaign goes on"),
        pytest.param(Stage.HELD, PAUSED, Brake(10, OFF), id="a pause without effect is taken off"),
        pytest.param(Stage.PAUSED, PAUSED, PAUSED, id="a paused one stays braked"),
        pytest.param(Stage.PAUSED, Brake(10, OFF), PAUSED, id="an order that came late may pause it after all"),
        pytest.param(Stage.CANCELLED, PAUSED, Brake(10, "cancel"), id="its reason follows the state"),
        pytest.param(Stage.RUNNING, LATER, LATER, id="an order that the fold does not know yet keeps the brake on"),
        pytest.param(Stage.RUNNING, None, None, id="one that nobody has stopped has none"),
        pytest.param(Stage.COMPLETED, None, Brake(10, "complete"), id="what Redis has lost is put on again"),
    ],
)
def test_the_brake_follows_the_fold(stage: Stage, known: Brake | None, right: Brake | None) -> None:
    assert required_brake(campaign(stage), known) == right


@pytest.mark.parametrize("more", [[], [r.Approve("maps-47", "bob"), r.Start("maps-47", "campaigner/0")]])
def test_a_pause_before_the_start_keeps_the_brake_on(more: list[r.Command]) -> None:
    orders = [r.Propose("maps-47", "author", plan=document()), r.Approve("maps-47", "ann"), r.Pause("maps-47", "ann"), *more]
    paused = fold(Campaign(), [Recorded(seq, order) for seq, order in enumerate(orders, 8)])

    assert required_brake(paused, PAUSED) == PAUSED


def test_the_brake_of_an_earlier_campaign_of_this_name_does_not_stop_it() -> None:
    again = fold(Campaign(), [Recorded(7, r.Note("c", "ann"))])  # the record of the earlier one is past its retention
    earlier, unread = Brake(5, "complete"), Brake(9, "pause")

    assert required_brake(again, earlier) == Brake(5, OFF)
    assert required_brake(again, unread) == unread
    assert [may_change(again, brake) for brake in (earlier, unread)] == [True, False]
