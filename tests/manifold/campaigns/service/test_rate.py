"""The rate on real parts: while the campaigner is killed again and again, when all vehicles come at once, and as it grows."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest

from manifold.campaigns.decided import Stage
from manifold.campaigns.facts import Released
from manifold.campaigns.record import read_facts
from manifold.campaigns.standing import Status
from manifold.contracts import campaigns as r
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet, Received, vins
from tests.manifold.campaigns.service.worlds import World, a_world, answering, copies, order, plan_for, propose
from tests.support.servers import wait_until

RATE, KILL_EVERY_S, PROMPT_S = 60, 20.0, 1.0
LATE_S = 3.0  # by which messages may be late on a busy machine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One platform; each test has its own vehicles."""
    with a_world(tmp_path_factory.mktemp("world")) as made:
        made.start_campaigner()
        yield made


class Signs:
    """A fleet's listener: when each vehicle came, and when each message arrived (monotonic seconds)."""

    def __init__(self) -> None:
        self.came: dict[str, float] = {}
        self.got: dict[tuple[str | None, str], list[float]] = {}

    def received(self, message: Received) -> None:
        self.got.setdefault((message.request_id, message.vin), []).append(time.monotonic())

    def acknowledged(self, message: Received) -> None:
        pass

    def changed(self, vin: str, what: str) -> None:
        if what == "online":
            self.came[vin] = time.monotonic()

    def arrivals(self, name: str) -> list[float]:
        """When messages of this name arrived, oldest first."""
        return sorted(at_s for (request, _), times in self.got.items() if request == name for at_s in times)


@pytest.mark.slow
def test_600_that_come_at_once_get_60_a_minute_while_the_campaigner_is_killed(world: World) -> None:
    """One minute and the next burst of ten minutes, which `test_acceptance` plays to their end in simulated time.

    Each vehicle also gets an ordinary message that waited for it, at once.
    """
    targets, signs = vins(600, seed=41), Signs()

    async def play() -> Fleet:
        async with Fleet(world.settings, targets, listener=signs) as fleet:
            await propose(world.settings, plan_for("slow", list(targets), rate=RATE))
            await asyncio.to_thread(world.wait_for, "slow", Stage.RUNNING)
            async with Publisher(world.settings) as platform:
                await platform.trigger(targets, "other", "data-slow")
            await fleet.connect()
            await fleet.wait_for(lambda fleet: copies(fleet, "other") == dict.fromkeys(targets, 1), 30)
            next_s = time.monotonic() + KILL_EVERY_S
            while copies(fleet, "slow").total() < 2 * RATE:
                try:
                    left_s = max(0.0, next_s - time.monotonic())
                    await fleet.wait_for(lambda fleet: copies(fleet, "slow").total() >= 2 * RATE, left_s)
                except TimeoutError:
                    world.campaigners["a"].kill()
                    await asyncio.to_thread(world.start_campaigner, active=False)
                    next_s += KILL_EVERY_S
        return fleet

    fleet = asyncio.run(play())
    released = [fact for fact in read_facts(world.settings, "slow") if isinstance(fact, Released)]
    asyncio.run(order(world.settings, r.Cancel("slow", "operator")))
    arrivals = signs.arrivals("slow")
    for first in released:
        within = (each for each in released if first.at_ms <= each.at_ms < first.at_ms + 60_000)
        assert sum(len(each.vins) for each in within) <= RATE
    assert max(sum(first <= at_s < first + 60 - LATE_S for at_s in arrivals) for first in arrivals) <= RATE
    assert 60 * RATE / (arrivals[-1] - arrivals[0]) >= 50, "a kill may fall into the instant of a release; see test_acceptance"
    assert set(copies(fleet, "slow").values()) == {1}
    waited = sorted(signs.got["other", vin][0] - signs.came[vin] for vin in targets)
    assert waited[len(waited) * 95 // 100] <= PROMPT_S


def test_the_rate_grows_with_successes_and_with_failures_it_does_not(world: World) -> None:
    """4, 8, 16 a minute, after each 4 successes; `test_acceptance` has 10, 20, 40 after each 50."""
    growing = {"from": 4, "times": 2, "every": 4, "up_to": 16}
    bad, good = vins(20, seed=43), vins(20, seed=45)

    def play(name: str, targets: Sequence[str], status: str, number: int, settled: Status) -> None:
        vehicles = [answering(world, vin, lambda _: status) for vin in targets]
        plan = plan_for(name, list(targets), rate=growing, success={"by": "answer", "within": "1h"})
        asyncio.run(propose(world.settings, plan))
        wait_until(lambda: world.campaign(name).total(settled) == number, what=f"{number} to be {settled}")
        for vehicle in vehicles:
            vehicle.leave()

    def sizes(name: str) -> list[int]:
        return [len(fact.vins) for fact in read_facts(world.settings, name) if isinstance(fact, Released)]

    play("failing", bad, "failed", 4, Status.FAILED)
    play("growing", good, "done", 16, Status.CONFIRMED)

    assert list(accumulate(sizes("growing"))) == [4, 8, 16]
    assert sizes("failing") == [4]
    for name in ("failing", "growing"):
        asyncio.run(order(world.settings, r.Cancel(name, "operator")))
