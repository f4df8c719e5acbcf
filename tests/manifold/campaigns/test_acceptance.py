"""Acceptance of campaigns at the sizes and times that a test cannot wait for: the real fold and step, in simulated time.

The same promises at a size that a test can wait for, on real parts, are in `service/`.
"""

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from manifold.campaigns.decided import Stage
from manifold.campaigns.facts import Ended, Ending, Fact, Recorded, Released
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.gates import rule_counts
from manifold.campaigns.lake import read_campaign
from manifold.campaigns.proof import wave_counts
from manifold.campaigns.quantities import instant_ms
from manifold.campaigns.rehearsal import Fleet, Simulation, propose, rehearse
from manifold.campaigns.step import Policy, Release, step
from manifold.campaigns.verification import verify
from manifold.campaigns.warnings import warnings_of
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused
from manifold.contracts.seq import seq_of, unix_ms_of
from manifold.settings import Settings
from tests.manifold.campaigns.plans import ALWAYS, NOW, POLICY, document, fleet_here, proposed, vins
from tests.manifold.campaigns.test_windows import is_inside
from tests.support.campaign_rows import write
from tests.support.lake_rows import new_lake

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NAME = "maps-47"


class Killed(Simulation):
    """A campaigner that is killed every 20 s: it is away for some seconds, and then folds the record anew, in any order."""

    EVERY_MS = 20 * SECOND

    def __init__(self, fleet: Fleet, seed: int) -> None:
        super().__init__(fleet, POLICY, NOW)
        self._chance, self.kills, self._back_ms = Random(seed), 0, NOW

    def _execute_effects(self) -> int | None:
        next_ms = NOW + self.EVERY_MS * (self.kills + 1)
        if self.now_ms >= next_ms:
            self.kills += 1
            self._back_ms = next_ms + self._chance.randint(SECOND, 10 * SECOND)
            self.campaign = fold(Campaign(), self._chance.sample(self.facts, len(self.facts)))
            next_ms += self.EVERY_MS
        if self.now_ms < self._back_ms:
            return self._back_ms
        wake_ms = super()._execute_effects()
        return next_ms if wake_ms is None else min(wake_ms, next_ms)


def start(world: Simulation, plan: dict[str, Any]) -> None:
    """Propose and approve a plan."""
    world.order(r.Propose(NAME, "author", plan=plan))
    world.order(r.Approve(NAME, "approver 1"))


def arrivals(facts: Iterable[Fact]) -> list[tuple[int, str]]:
    """When each vehicle got its message (Unix ms), oldest first."""
    return sorted((unix_ms_of(fact.seq) - Fleet({}).ack_ms, fact.vin) for fact in facts if isinstance(fact, Ended))


def most_in_a_minute(instants: list[int]) -> int:
    """The largest number of these instants in any 60 s."""
    return max(sum(first <= at_ms < first + MINUTE for at_ms in instants) for first in instants)


def orders(facts: list[Fact], kind: type[r.Command]) -> list[tuple[int, Any]]:
    """When orders of this kind were recorded, and the orders."""
    return [
        (unix_ms_of(fact.seq), fact.command) for fact in facts if isinstance(fact, Recorded) and isinstance(fact.command, kind)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_600_vehicles_get_60_a_minute_though_the_campaigner_dies_every_20_s(seed: int) -> None:
    world = Killed(fleet_here(600), seed)
    start(world, document(number=600, rate=60))

    world.run(NOW + HOUR)

    got = arrivals(world.facts)
    instants = [at_ms for at_ms, _ in got]
    assert (len(got), len({vin for _, vin in got}), world.campaign.decided.stage) == (600, 600, Stage.COMPLETED)
    assert world.kills >= 27
    assert most_in_a_minute(instants) <= 60
    assert (600 - 60) / ((instants[-1] - instants[0]) / MINUTE) >= 57
    assert verify(world.facts) == ()


def test_500_vehicles_that_come_at_once_get_60_in_any_minute() -> None:
    comes = NOW + HOUR
    world = proposed(document(number=500, rate=60), Fleet(dict.fromkeys(vins(500), ((comes, 1 << 60),))))

    world.run(NOW + DAY)

    instants = [at_ms for at_ms, _ in arrivals(world.facts)]
    assert (len(instants), instants[0], most_in_a_minute(instants)) == (500, comes, 60)
    assert instants[-1] - instants[0] == 8 * MINUTE


@pytest.mark.parametrize("failing", [False, True])
def test_the_rate_doubles_with_each_50_successes_and_with_failures_never(failing: bool) -> None:
    rate = {"from": 10, "times": 2, "every": 50, "up_to": 40}
    world = proposed(document(number=300, rate=rate), fleet_here(300, failing=frozenset(vins(300) if failing else ())))

    world.run(NOW + 4 * HOUR)

    assert len(arrivals(world.facts)) == 300
    minutes = [0] * 30
    for at_ms, _ in arrivals(world.facts):
        minutes[(at_ms - NOW) // MINUTE] += 1
    # 50 successes are known in the fifth minute, and 100 in the seventh: the rate then has room at once.
    assert minutes == ([10] * 30 if failing else [10, 10, 10, 10, 20, 20, 40, 40, 40, 40, 40, 20, *[0] * 18])


def test_a_soak_that_breaks_begins_anew() -> None:
    gate = {"released": "50%", "known": "100%", "soak": "20s"}
    plan = document(number=20, waves=[{"name": "first", "vins": list(vins(10)), "gate": gate}, {"name": "rest", "size": "rest"}])
    late = NOW + 10 * SECOND
    visits = dict.fromkeys(vins(20), ALWAYS) | {vins(10)[-1]: ((late, 1 << 60),)}
    world = proposed(plan, Fleet(visits))

    world.run(NOW + HOUR)

    assert [at_ms - NOW for at_ms, _ in orders(world.facts, r.Hold)] == [SECOND, 11 * SECOND]
    assert [at_ms - NOW for at_ms, _ in orders(world.facts, r.Unhold)] == [10 * SECOND], "one more was released"
    assert [at_ms - NOW for at_ms, _ in orders(world.facts, r.Pass)] == [31 * SECOND]
    assert min(fact.at_ms for fact in world.facts if isinstance(fact, Released) and fact.wave == 1) == NOW + 31 * SECOND


def test_a_wave_of_which_40_percent_never_come_is_held_and_never_passes_by_itself() -> None:
    gate = {"released": "80%", "patience": "5d"}
    plan = document(
        number=200, waves=[{"name": "first", "vins": list(vins(100)), "gate": gate}, {"name": "rest", "size": "rest"}]
    )
    world = proposed(plan, Fleet(dict.fromkeys([*vins(60), *vins(200)[100:]], ALWAYS)))

    world.run(NOW + 15 * DAY)

    [(held_ms, hold)] = orders(world.facts, r.Hold)
    assert (held_ms, hold.because, hold.counts) == (
        NOW + 5 * DAY,
        "patience",
        {"targets": 100, "released": 60, "known": 60, "success": 60},
    )
    decided = world.campaign.decided
    assert (decided.stage, decided.because, decided.wave) == (Stage.HELD, "the patience of the gate is over", 0)


def test_a_rule_trips_on_the_outcome_that_crosses_it_and_the_lake_counts_the_same(tmp_path: Path) -> None:
    rules = [{"name": "r1", "count": ["failed"], "over": "2%", "at_least": 50, "in": "wave", "then": "pause"}]
    visits = {vin: ((NOW + SECOND * place, 1 << 60),) for place, vin in enumerate(vins(500))}
    failing = frozenset({vins(500)[10], vins(500)[59]})  # of 59 known, 1 has failed; with the 60th, 2 have: more than 2 %
    world = proposed(document(number=500, rules=rules), Fleet(visits, failing=failing))

    world.run(NOW + DAY)

    [(paused_ms, pause)] = orders(world.facts, r.Pause)
    counts = {"known": 60, "count": 2, "wave": 0}
    assert (pause.rule, pause.counts, world.campaign.decided.stage) == ("r1", counts, Stage.PAUSED)
    crossing = [fact for fact in world.facts if isinstance(fact, Ended) and fact.ending == "failed"][-1]
    assert paused_ms - unix_ms_of(crossing.seq) <= 5 * SECOND
    catalog = new_lake(Settings(home=tmp_path))
    write(catalog, world.facts)
    of_lake = read_campaign(catalog, NAME)
    seen = fold(Campaign(), [fact for fact in of_lake.facts if fact.seq <= pause.seen])
    assert seen.decided.plan is not None
    assert rule_counts(seen, seen.decided.plan.rules[0], 0, paused_ms) | {"wave": 0} == pause.counts
    assert wave_counts(fold(Campaign(), of_lake.facts)) == wave_counts(world.campaign)


@pytest.mark.parametrize("window", [("22:00", "05:00"), ("02:00", "03:00")])
def test_over_a_change_of_time_each_arrival_is_in_the_window_of_its_zone(window: tuple[str, str]) -> None:
    """In Berlin, 28 March 2027 has no time from 02:00 to 03:00; Tokyo's clock never changes, and New York's has before."""
    zones = ("Europe/Berlin", "America/New_York", "Asia/Tokyo")
    now = instant_ms("2027-03-27T06:00:00Z")
    targets = [r.Target(vin, zones[place % 3]) for place, vin in enumerate(vins(300))]
    hours = {"from": window[0], "to": window[1], "zone": "vehicle", "else": "UTC"}
    plan = document(targets={"file": "list.parquet"}, window=hours, ends="2027-04-02T00:00:00Z")
    comes = {vin: ((now + place * DAY // 100, 1 << 60),) for place, vin in enumerate(vins(300))}
    dry = propose(plan, targets, POLICY, now)
    result = rehearse(plan, targets, Fleet(comes), POLICY, now)

    assert not isinstance(dry, Refused)
    assert not isinstance(result, Refused)
    made, said = result.campaign.decided.plan, warnings_of(dry, now)
    assert made is not None
    assert made.window is not None
    zone_of = {target.vin: str(target.zone) for target in targets}
    got = arrivals(result.facts)
    assert len(got) == 300
    assert {zone_of[vin] for _, vin in got} == set(zones)
    assert all(is_inside(made.window, zone_of[vin], at_ms) for at_ms, vin in got)
    the_day = range(instant_ms("2027-03-28T00:00:00+01:00"), instant_ms("2027-03-29T00:00:00+02:00"))
    of_that_day = {zone_of[vin] for at_ms, vin in got if at_ms in the_day}
    if window == ("02:00", "03:00"):
        assert of_that_day == {"America/New_York", "Asia/Tokyo"}
        told = "the window does not open on 2027-03-28 in Europe/Berlin, where the clock skips it: 100 targets wait for the next"
        assert said == [told]
    else:
        assert of_that_day == set(zones)
        assert said == []


def test_who_leaves_before_the_window_ends_gets_it_in_the_next_one() -> None:
    """Released ten seconds before five; withdrawn at the end of the window, as dispatchers do; here at eight and at ten."""
    [vin], policy = vins(1), Policy(ack_deadline_ms=10 * SECOND)
    plan = document(number=1, window={"from": "22:00", "to": "05:00"})
    world = proposed(plan, Fleet({}), policy=policy)
    released, over, eight, ten = map(
        instant_ms, ("2026-12-02T04:59:50Z", "2026-12-02T05:00:00Z", "2026-12-02T08:00:00Z", "2026-12-02T22:00:00Z")
    )
    world.run(released)

    def releases(at_ms: int) -> list[Release]:
        return [effect for effect in step(world.campaign, at_ms, {vin}, policy) if isinstance(effect, Release)]

    assert releases(released) == [Release(0, 1, over, (vin,))]
    first = seq_of(released, 0, 0)
    facts: list[Fact] = [Released(first, 0, 1, (vin,), over), Ended(seq_of(over, 0, 0), vin, first, Ending.WITHDRAWN)]
    world.campaign = fold(world.campaign, facts)
    assert releases(eight) == []
    assert [(again.step, again.vins) for again in releases(ten)] == [(2, (vin,))]


def test_who_is_away_during_the_window_gets_what_was_queued_in_a_later_one() -> None:
    """Withdrawn at five, and released again at ten; the vehicle that comes and goes meanwhile gets nothing until it is back."""
    late, brief, last_second, in_time, never = vins(5)
    first, again, back, eight, nine, five, forever = map(
        instant_ms,
        (
            "2026-12-01T23:00:00Z",
            "2026-12-02T22:00:00Z",
            "2026-12-02T23:30:00Z",
            "2026-12-02T08:00:00Z",
            "2026-12-02T09:00:00Z",
            "2026-12-02T05:00:00Z",
            "2027-01-01T00:00:00Z",
        ),
    )
    visits = {
        late: ((eight, forever),),
        brief: ((eight, nine), (back, forever)),
        last_second: ((five - 500, forever),),
        in_time: ((first, forever),),
    }
    world = proposed(document(number=5, away="queue", window={"from": "22:00", "to": "05:00"}), Fleet(visits))

    world.run(instant_ms("2026-12-19T12:00:00Z"))

    got = [
        (unix_ms_of(fact.seq) - SECOND, fact.vin)
        for fact in world.facts
        if isinstance(fact, Ended) and fact.ending == "delivered"
    ]
    assert got == [(first, in_time), *sorted([(again, late), (again, last_second)]), (back, brief)]
    assert [len(release.vins) for release in world.facts if isinstance(release, Released)] == [5, 4, *[1] * 16]
    assert world.campaign.status_of(never) == "waiting"
    assert verify(world.facts) == ()
