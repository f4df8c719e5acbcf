"""Promises of a campaign over random plans and fleets: rate, windows, no second copy, effective stops."""

import random
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from manifold.campaigns.facts import Answer, Answered, Ended, Fact, Recorded, Released
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.parsing import plan_of
from manifold.campaigns.plan import Plan
from manifold.campaigns.quantities import instant_ms
from manifold.campaigns.rehearsal import Fleet, Rehearsal, Simulation, rehearse
from manifold.campaigns.standing import Status
from manifold.campaigns.step import Release, Wake, step
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused
from manifold.contracts.seq import unix_ms_of
from tests.manifold.campaigns.plans import POLICY, document, vins
from tests.manifold.campaigns.test_windows import is_inside

Run = tuple[dict[str, Any], list[r.Target], Fleet, int]  # a plan, its targets, the fleet, and when it starts
NUMBER = 24
quick = settings(max_examples=25, deadline=None)
MINUTE, DAY = 60_000, 86_400_000
STARTS = ["2027-03-26T12:00:00Z", "2026-10-23T12:00:00Z", "2026-12-01T12:00:00Z"]  # two before a daylight saving change
ZONES = [None, "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]

gates = st.fixed_dictionaries(
    {},
    optional={
        "released": st.sampled_from(["50%", "100%"]),
        "known": st.sampled_from(["50%", "100%"]),
        "success": st.sampled_from(["0%", "80%"]),
        "soak": st.sampled_from(["0s", "90s", "3h"]),
        "approve": st.integers(0, 2),
        "patience": st.just("6h"),
    },
)
plans = st.fixed_dictionaries(
    {"targets": st.just({"file": "list.parquet"})},
    optional={
        "waves": gates.map(lambda gate: [{"name": "first", "size": "20%", "gate": gate}, {"name": "rest", "size": "rest"}]),
        "rate": st.integers(1, 8)
        | st.builds(
            lambda start, every: {"from": start, "times": 2, "every": every, "up_to": 12}, st.integers(1, 4), st.integers(1, 8)
        ),
        "window": st.sampled_from([("22:00", "05:00"), ("02:00", "03:00"), ("08:00", "08:05")]).map(
            lambda hours: {"from": hours[0], "to": hours[1], "else": "Asia/Kolkata"}
        ),
        "away": st.sampled_from(["wait", "queue"]),
        "retry": st.sampled_from([{"times": 1, "after": "2h"}, {"times": 1, "after": "2h", "on": ["failed", "busy", "silent"]}]),
        "success": st.just({"by": "answer", "within": "10m"}),
        "rules": st.sampled_from([1, 3]).map(lambda over: [{"name": "r1", "count": ["failed"], "over": over}]),
    },
)
# Seconds after the start at which a vehicle connects, and for how long: many together, within a minute, and later.
visits = st.lists(st.tuples(st.integers(0, 120) | st.integers(0, 200_000), st.integers(1, 100_000)), max_size=2)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Vehicles with a few connection patterns from a few zones."""
    now = instant_ms(draw(st.sampled_from(STARTS)))
    fields: dict[str, Any] = draw(plans)
    plan = document(**fields) | {"ends": datetime.fromtimestamp(now / 1000 + 10 * 86_400, UTC).isoformat()}
    zones, patterns = (
        draw(st.lists(st.sampled_from(ZONES), min_size=1, max_size=3)),
        draw(st.lists(visits, min_size=1, max_size=6)),
    )
    targets = [r.Target(vin, zones[place % len(zones)]) for place, vin in enumerate(vins(NUMBER))]
    presence: dict[str, tuple[tuple[int, int], ...]] = {}
    for place, vin in enumerate(vins(NUMBER)):
        spans = sorted((now + 1000 * start, now + 1000 * (start + length)) for start, length in patterns[place % len(patterns)])
        presence[vin] = tuple(span for number, span in enumerate(spans) if number == 0 or span[0] > spans[number - 1][1])
    failing = draw(st.frozensets(st.sampled_from(vins(NUMBER)), max_size=4))
    answers = draw(st.dictionaries(st.sampled_from(vins(NUMBER)), st.none() | st.sampled_from(Answer), max_size=6))
    return plan, targets, Fleet(presence, failing=failing, answers=answers), now


def rehearsed(run: Run) -> tuple[Plan, Rehearsal]:
    plan, result = plan_of(run[0]), rehearse(*run[:3], POLICY, run[3])
    assert isinstance(plan, Plan)
    assert isinstance(result, Rehearsal)
    return plan, result


@quick
@given(runs())
def test_no_sixty_seconds_hold_more_releases_than_the_rate(run: Run) -> None:
    plan, result = rehearsed(run)

    for last, newest in enumerate(result.releases):
        within = [release for release in result.releases[: last + 1] if release.at_ms > newest.at_ms - MINUTE]
        before = fold(Campaign(), (fact for fact in result.facts if fact.seq < newest.seq))
        successes = before.total(Status.DELIVERED, Status.CONFIRMED)
        assert sum(len(release.vins) for release in within) <= plan.per_minute(successes)


@quick
@given(runs())
def test_a_release_fits_the_window_of_its_vehicles_with_time_to_deliver(
    run: Run,
) -> None:
    plan, result = rehearsed(run)
    zones = {target.vin: target.zone for target in run[1]}

    for release in result.releases:
        for vin in release.vins:
            if plan.window is not None:
                zone = plan.window.zone_of(zones[vin])
                assert is_inside(plan.window, zone, release.at_ms)
                assert is_inside(plan.window, zone, release.at_ms + POLICY.ack_deadline_ms - 1)
                assert release.until_ms is not None
                assert not is_inside(plan.window, zone, release.until_ms)


@quick
@given(runs())
def test_a_vehicle_gets_its_message_while_its_window_is_open(run: Run) -> None:
    plan, result = rehearsed(run)
    zones = {target.vin: target.zone for target in run[1]}

    for fact in result.facts:
        if plan.window is not None and isinstance(fact, Ended) and fact.ending != "withdrawn":
            assert is_inside(plan.window, plan.window.zone_of(zones[fact.vin]), unix_ms_of(fact.seq) - run[2].ack_ms)


@quick
@given(runs())
def test_a_target_under_way_or_settled_is_not_released(
    run: Run,
) -> None:
    plan, result = rehearsed(run)

    under_way: dict[str, int] = {}
    done: set[str] = set()
    asks = plan.success.by == "answer"
    for fact in result.facts:
        if isinstance(fact, Released):
            assert not under_way.keys() & set(fact.vins)
            assert not done & set(fact.vins)
            under_way |= dict.fromkeys(fact.vins, fact.seq)
        if isinstance(fact, Ended):
            assert under_way.pop(fact.vin) == fact.release
            if fact.ending == "delivered" and not asks:
                done.add(fact.vin)
        if isinstance(fact, Answered) and fact.answer == "done":
            done.add(fact.vin)


@quick
@given(runs())
def test_no_wave_is_released_before_the_previous_gate_passes(
    run: Run,
) -> None:
    _, result = rehearsed(run)

    passed = [fact.seq for fact in result.facts if isinstance(fact, Recorded) and isinstance(fact.command, r.Pass)]
    for release in result.releases:
        assert release.wave <= sum(seq < release.seq for seq in passed)


@quick
@given(runs(), st.data(), st.sampled_from([r.Pause("maps-47", "ann"), r.Cancel("maps-47", "ann")]))
def test_a_stop_takes_effect_at_any_point(run: Run, data: st.DataObject, stop: r.Command) -> None:
    _, result = rehearsed(run)
    before = result.facts[: data.draw(st.integers(0, len(result.facts)))]

    stopped = fold(Campaign(), [*before, Recorded(before[-1].seq + 1 if before else 1, stop)])

    if stopped.decided.is_braked:
        for later in (0, MINUTE, DAY):
            effects = step(stopped, run[3] + later, vins(NUMBER), POLICY)
            assert not [effect for effect in effects if isinstance(effect, Release)]
    else:
        assert stopped.decided.stage in ("new", "completed")


class Restarted(Simulation):
    """A campaigner that restarts before each step: it folds the record in any order and with repetitions.

    It runs more often than `Wake` requires, and sees vehicles outside the campaign.
    """

    def __init__(self, run: Run, seed: int) -> None:
        super().__init__(run[2], POLICY, run[3])
        self._chance = random.Random(seed)

    def _fold(self, facts: Any) -> None:
        for fact in facts:
            if isinstance(fact, Recorded):
                command = r.decode(r.encode(fact.command))
                assert not isinstance(command, Refused)
                fact = Recorded(fact.seq, command)
            self.facts.append(fact)
        record = self.facts + self._chance.sample(self.facts, len(self.facts) // 2)
        self._chance.shuffle(record)
        self.campaign = fold(Campaign(), record)

    def _execute_effects(self) -> int | None:
        wake_ms: int | None = super()._execute_effects()
        if wake_ms is None or wake_ms <= self.now_ms + 1:
            return wake_ms
        return min(wake_ms, self.now_ms + self._chance.randint(1, DAY))


def delivered(facts: tuple[Fact, ...] | list[Fact]) -> list[tuple[str, int, int, int]]:
    """Each release of each vehicle: VIN, wave, step and time."""
    releases = [fact for fact in facts if isinstance(fact, Released)]
    return sorted((vin, release.wave, release.step, release.at_ms) for release in releases for vin in release.vins)


@quick
@given(runs(), st.integers(0, 1 << 32))
def test_a_run_equals_its_dry_run_vehicle_by_vehicle(run: Run, seed: int) -> None:
    plan, result = rehearsed(run)
    world = Restarted(run, seed)

    world.order(r.Propose(plan.campaign, "author", plan=run[0]))
    world.order(r.AddTargets(plan.campaign, "author", targets=tuple(run[1])))
    world.order(r.Approve(plan.campaign, "approver 1"))
    world.run(plan.ends_ms)

    assert delivered(world.facts) == delivered(result.facts)
    assert world.campaign.decided.stage == result.campaign.decided.stage


@quick
@given(runs(), st.integers(0, 1 << 32), st.integers(1, 3))
def test_a_campaign_paused_before_its_start_runs_as_its_dry_run_once_it_is_resumed(run: Run, seed: int, place: int) -> None:
    plan, result = rehearsed(run)
    world, name = Restarted(run, seed), plan.campaign
    orders: list[r.Command] = [
        r.Propose(name, "author", plan=run[0]),
        r.AddTargets(name, "author", targets=tuple(run[1])),
        r.Approve(name, "approver 1"),
    ]

    for order in [*orders[:place], r.Pause(name, "ann"), *orders[place:]]:
        world.order(order)
    for later in (0, MINUTE, DAY, plan.ends_ms - run[3]):
        assert not [
            effect for effect in step(world.campaign, run[3] + later, vins(NUMBER), POLICY) if not isinstance(effect, Wake)
        ]
    world.order(r.Resume(name, "ann"))
    world.run(plan.ends_ms)

    assert delivered(world.facts) == delivered(result.facts)
    assert world.campaign.decided.stage == result.campaign.decided.stage
