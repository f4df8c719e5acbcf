"""Entries under way on real parts, while their campaign is paused, cancelled, or waits for answers."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from manifold.campaigns.decided import Stage
from manifold.campaigns.facts import Answered, Released
from manifold.campaigns.record import read_facts
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.contracts.outcomes import Outcome
from manifold.contracts.seq import unix_ms_of
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import vins
from tests.dispatcher.vehicle import Got, Vehicle
from tests.manifold.campaigns.service.worlds import World, a_world, answering, online, order, plan_for, propose
from tests.support.servers import wait_until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A platform with short deadlines; each test has its own vehicles."""
    with a_world(tmp_path_factory.mktemp("world"), ack_deadline_seconds=2, ack_deadline_max_seconds=4) as made:
        made.start_campaigner()
        yield made


def silent(world: World, vin: str) -> Vehicle:
    """A connected vehicle that acknowledges when it is told to."""
    vehicle = Vehicle(world, vin=vin)
    vehicle.acks = False
    return online(vehicle)


def ended(world: World, vin: str) -> list[Outcome]:
    """How entries of the vehicle have ended so far."""
    return [record.outcome for record in world.platform.outcomes(vin)]


def test_a_puback_that_comes_after_the_pause_counts_and_a_resume_sends_nothing(world: World) -> None:
    vehicle = silent(world, vins(1, seed=51)[0])
    asyncio.run(propose(world.settings, plan_for("held-back", [vehicle.vin])))
    vehicle.waits_for(1)

    asyncio.run(order(world.settings, r.Pause("held-back", "ann")))
    wait_until(lambda: ended(world, vehicle.vin) == [Outcome.WITHDRAWN], what="the entry to be withdrawn at its deadline")
    assert len(vehicle.got) == 1, "it is not published again"
    vehicle.ack(vehicle.got[0])
    wait_until(lambda: world.campaign("held-back").total(Status.DELIVERED) == 1, what="the late word to count")
    asyncio.run(order(world.settings, r.Resume("held-back", "ann")))

    campaign = world.wait_for("held-back", Stage.COMPLETED)
    assert (len(vehicle.got), list(campaign.releases.values())) == (1, [1])
    vehicle.leave()


def test_a_cancel_ends_what_waits_at_once_and_what_is_in_flight_by_its_vehicle(world: World) -> None:
    late, never, away, waiting = vins(4, seed=53)
    acks, acks_not = silent(world, late), silent(world, never)
    waves = [{"name": "first", "vins": [late, never, away], "gate": {"success": "100%"}}, {"name": "rest", "size": "rest"}]
    plan = plan_for("called-off", [late, never, away, waiting], waves=waves, away="queue")
    asyncio.run(propose(world.settings, plan))
    acks.waits_for(1)
    acks_not.waits_for(1)

    asyncio.run(order(world.settings, r.Cancel("called-off", "ann")))
    assert world.campaign("called-off").status_of(waiting) is Status.CANCELLED
    acks.ack(acks.got[0])

    wait_until(lambda: world.campaign("called-off").status_of(late) is Status.DELIVERED, what="the word of a vehicle to count")
    for vin in (never, away):
        wait_until(lambda vin=vin: ended(world, vin) == [Outcome.WITHDRAWN], what=f"the entry of {vin} to be withdrawn")  # type: ignore[misc]
    wait_until(lambda: world.campaign("called-off").status_of(never) is Status.CANCELLED, what="its deadline")
    comes = online(Vehicle(world, vin=away))

    async def another() -> None:
        async with Publisher(world.settings) as platform:
            await platform.trigger([away, never], "other", "data-called-off")

    asyncio.run(another())
    comes.waits_for(1)
    acks_not.waits_for(2)
    campaign = world.campaign("called-off")
    assert {vin: campaign.status_of(vin) for vin in (late, never, away, waiting)} == {
        late: Status.DELIVERED,
        never: Status.CANCELLED,
        away: Status.CANCELLED,
        waiting: Status.CANCELLED,
    }
    assert (comes.requests, acks_not.requests, len(acks.got)) == (["other"], ["called-off", "other"], 1)
    for vehicle in (acks, acks_not, comes):
        vehicle.leave()


def test_answers_settle_their_targets_and_who_is_busy_is_tried_again_later(world: World) -> None:
    done, busy, failed, refused, silent_ = targets = vins(5, seed=55)

    asked: dict[str, Callable[[Got], str | None]] = {
        done: lambda _: "done",
        failed: lambda _: "failed",
        refused: lambda _: "refused",
        silent_: lambda _: None,
    }
    first: list[Got] = []

    def busy_once(got: Got) -> str:
        first.append(got)
        return "busy" if len(first) == 1 else "done"

    vehicles = [answering(world, vin, status) for vin, status in (asked | {busy: busy_once}).items()]
    retry = {"on": ["busy"], "times": 1, "after": "3s"}
    plan = plan_for("asked", list(targets), success={"by": "answer", "within": "2s"}, retry=retry)
    asyncio.run(propose(world.settings, plan))

    campaign = world.wait_for("asked", Stage.COMPLETED)
    assert [campaign.status_of(vin) for vin in targets] == ["confirmed", "confirmed", "failed", "rejected", "silent"]
    facts = read_facts(world.settings, "asked")
    [answered] = [fact.seq for fact in facts if isinstance(fact, Answered) and fact.answer == "busy"]
    _, again = [fact for fact in facts if isinstance(fact, Released) and busy in fact.vins]
    assert again.at_ms - unix_ms_of(answered) >= 3_000
    assert [vehicle.requests for vehicle in vehicles] == [["asked"]] * 4 + [["asked"] * 2]
    for vehicle in vehicles:
        vehicle.leave()
