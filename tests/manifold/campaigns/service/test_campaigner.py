"""Campaigns on real parts, from the order to the last acknowledgement: waves, gates, rules, the rate, and who is away."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from manifold.campaigns.decided import Stage
from manifold.campaigns.standing import Status
from manifold.campaigns.views import events
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import unix_ms_of, wall_clock_ms
from manifold.sandbox.fleet import Fleet, vins
from tests.manifold.campaigns.service.worlds import World, a_world, copies, order, plan_for, propose
from tests.support.servers import wait_until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One platform for tests that stop nothing; each has its own vehicles."""
    with a_world(tmp_path_factory.mktemp("world")) as made:
        made.start_campaigner()
        yield made


def end(world: World, name: str, number: int, how: Outcome) -> None:
    """Let the entries of so many released targets end, as a dispatcher reports it."""
    campaign = world.campaign(name)
    released = [vin for vin in campaign.roster.vins if campaign.standing_of(vin).status is Status.RELEASED]
    with world.platform.blocking() as redis:
        for vin in released[:number]:
            seq = campaign.standing_of(vin).since
            redis.xadd(keys.OUTCOMES, {"o": OutcomeRecord(vin, seq, how, wall_clock_ms()).to_wire()})


def metrics(world: World) -> list[str]:
    """The lines that the campaigner shows Prometheus."""
    port = world.campaigners["a"].port
    return httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text.splitlines()


def wait_released(world: World, name: str, number: int) -> None:
    """Wait until so many targets of the campaign are released and not settled."""
    wait_until(lambda: world.campaign(name).total(Status.RELEASED) == number, what=f"{number} released targets")


def test_a_vehicle_that_comes_later_is_sent_to_within_seconds(world: World) -> None:
    here, away = vins(4, seed=5)[:3], vins(4, seed=5)[3]

    async def play() -> Fleet:
        async with Fleet(world.settings, [*here, away]) as fleet:
            await fleet.connect(here)
            await propose(world.settings, plan_for("later", [*here, away]))
            await fleet.wait_for(lambda fleet: copies(fleet, "later") == dict.fromkeys(here, 1), 30)
            assert world.campaign("later").total(Status.WAITING) == 1
            waiting = 'manifold_campaign_targets{campaign="later",state="waiting",wave="all"} 1.0'
            await asyncio.to_thread(wait_until, lambda: waiting in metrics(world), what="the metrics to show who waits")
            await fleet.connect([away])
            await fleet.wait_for(lambda fleet: copies(fleet, "later")[away], 5)
            await asyncio.to_thread(world.wait_for, "later", Stage.COMPLETED)
        return fleet

    assert copies(asyncio.run(play()), "later") == dict.fromkeys([*here, away], 1)


def test_a_rule_trips_within_five_seconds_and_is_accepted_by_name(world: World) -> None:
    targets = vins(10, seed=9)
    rule = {"name": "r1", "count": ["failed"], "over": 2}
    asyncio.run(propose(world.settings, plan_for("ruled", list(targets), away="queue", rules=[rule])))
    wait_released(world, "ruled", 10)

    end(world, "ruled", 3, Outcome.FAILED)
    paused = world.wait_for("ruled", Stage.PAUSED)
    crossed = max(int(paused.ledger.standing_of(vin).since) for vin in paused.roster.vins if paused.status_of(vin) == "failed")
    [(tripped, pause)] = [(seq, each) for seq, each in paused.orders.items() if isinstance(each, r.Pause)]
    assert (pause.rule, pause.counts) == ("r1", {"known": 3, "count": 3})
    assert unix_ms_of(tripped) - unix_ms_of(crossed) < 5_000

    asyncio.run(order(world.settings, r.Resume("ruled", "operator")))
    asyncio.run(order(world.settings, r.Resume("ruled", "operator", accept=("r1",))))
    resumed = world.wait_for("ruled", Stage.RUNNING)
    assert [reason for _, reason in resumed.decided.ignored] == ["accept lacks r1; name the rules that tripped"]
    end(world, "ruled", 2, Outcome.FAILED)  # it counts from zero again
    wait_until(lambda: world.campaign("ruled").total(Status.FAILED) == 5, what="two more failures")
    assert world.campaign("ruled").decided.stage is Stage.RUNNING
    asyncio.run(order(world.settings, r.Cancel("ruled", "operator")))


def test_a_gate_that_cannot_hold_is_opened_by_a_person_alone(world: World) -> None:
    """One of ten fails; that waiting alone never opens the next wave, `test_step` plays in simulated time."""
    targets = vins(12, seed=11)
    waves = [{"name": "canary", "size": 10, "gate": {"success": "100%", "patience": "1s"}}, {"name": "rest", "size": "rest"}]
    asyncio.run(propose(world.settings, plan_for("gated", list(targets), away="queue", waves=waves)))
    wait_released(world, "gated", 10)

    end(world, "gated", 9, Outcome.DELIVERED)
    wait_released(world, "gated", 1)
    end(world, "gated", 1, Outcome.FAILED)
    held = world.wait_for("gated", Stage.HELD)
    assert (held.decided.held_because, len(held.releases)) == ("patience", 1)
    asyncio.run(order(world.settings, r.Pass("gated", "operator", why="known fault of this one", wave=0)))
    wait_released(world, "gated", 2)
    passed = world.campaign("gated")
    assert len(passed.releases) == 2
    told = [(event["by"], event["why"]) for event in events(passed)[0] if event["do"] == "pass"]
    assert told == [("operator", "known fault of this one")]
    asyncio.run(order(world.settings, r.Cancel("gated", "operator")))


def test_the_next_wave_opens_after_the_soak(world: World) -> None:
    targets = vins(4, seed=13)
    waves = [{"name": "canary", "size": 2, "gate": {"soak": "3s"}}, {"name": "rest", "size": "rest"}]

    async def play() -> Fleet:
        async with Fleet(world.settings, targets) as fleet:
            await fleet.connect()
            await propose(world.settings, plan_for("soaked", list(targets), waves=waves))
            await asyncio.to_thread(world.wait_for, "soaked", Stage.COMPLETED)
        return fleet

    assert copies(asyncio.run(play()), "soaked") == dict.fromkeys(targets, 1)
    orders = world.campaign("soaked").orders
    held, passed = (next(seq for seq, each in orders.items() if isinstance(each, kind)) for kind in (r.Hold, r.Pass))
    assert 3_000 <= unix_ms_of(passed) - unix_ms_of(held) <= 13_000


def test_a_plan_that_waits_for_its_approval_takes_no_place_of_another(world: World) -> None:
    world.start_campaigner("narrow", active=False, campaigns_open=1)
    world.campaigners.pop("a").kill()
    asyncio.run(propose(world.settings, plan_for("unapproved", ["Z1"]), approve=False))

    asyncio.run(propose(world.settings, plan_for("approved", ["Z2"])))

    world.wait_for("approved", Stage.RUNNING)
    world.campaigners.pop("narrow").kill()
    world.start_campaigner()
