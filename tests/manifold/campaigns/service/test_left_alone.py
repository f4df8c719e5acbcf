"""An unexpected error in one campaign stops that campaign alone, and the campaigner says so."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from manifold.campaigns.decided import Stage
from manifold.campaigns.facts import Fact, Recorded
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.service import _active, _book
from manifold.campaigns.service._active import Active
from manifold.campaigns.service._lead import Lead
from manifold.campaigns.step import step
from manifold.queues import connect
from tests.manifold.campaigns.service.worlds import World, a_world, plan_for, propose

NAMES = ("bad-fold", "bad-step", "good")


def fold_of_most(campaign: Campaign, facts: Iterable[Fact]) -> Campaign:
    """The fold, with an error in one campaign."""
    known = list(facts)
    if any(isinstance(fact, Recorded) and fact.command.campaign == "bad-fold" for fact in known):
        raise OverflowError("too large")
    return fold(campaign, known)


def step_of_most(campaign: Campaign, *rest: Any) -> object:
    """The decision, with an error in one campaign."""
    assert campaign.decided.plan is not None
    if campaign.decided.plan.campaign == "bad-step":
        raise ZeroDivisionError("by zero")
    return step(campaign, *rest)


async def decide(world: World) -> Active:
    """Propose all campaigns, and decide until the good one runs."""
    redis = connect(world.settings.redis)
    lead = Lead(world.settings, redis)
    for name in NAMES:
        await propose(world.settings, plan_for(name, [f"V-{name}"]))
    await lead.take()
    active = Active(world.settings, redis, lead, "has not read the record yet")
    work = asyncio.create_task(active.run())
    told = asyncio.create_task(asyncio.to_thread(world.wait_for, "good", Stage.RUNNING))
    await asyncio.wait((work, told), return_when=asyncio.FIRST_COMPLETED)
    assert not work.done(), work
    assert REGISTRY.get_sample_value("manifold_campaigner_left_alone") == 2
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await told
    await lead.leave()
    await redis.aclose()
    return active


def test_an_error_in_a_fold_or_decision_leaves_that_campaign_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_book, "fold", fold_of_most)
    monkeypatch.setattr(_active, "step", step_of_most)
    with a_world(tmp_path) as world:
        active = asyncio.run(decide(world))

        stages = {name: world.campaign(name).decided.stage for name in NAMES}

    assert stages == {"bad-fold": Stage.PROPOSED, "bad-step": Stage.PROPOSED, "good": Stage.RUNNING}
    assert active.problem is None
    assert {name: active.waiting.get(name) for name in NAMES[:2]} == {
        "bad-fold": "left alone until the campaigner starts again, because of an unexpected OverflowError; see the log",
        "bad-step": "left alone until the campaigner starts again, because of an unexpected ZeroDivisionError; see the log",
    }
    assert REGISTRY.get_sample_value("manifold_campaigner_left_alone") == 0, "another campaigner may lead now"
