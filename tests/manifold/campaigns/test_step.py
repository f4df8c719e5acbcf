"""Gates, rules, rate and windows, one case each, in virtual time."""

from typing import Any

import pytest
from msgspec.structs import replace

from manifold.campaigns.decided import Stage
from manifold.campaigns.facts import Answer, Recorded, Released
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.membership import assign
from manifold.campaigns.parsing import plan_of
from manifold.campaigns.plan import Plan
from manifold.campaigns.quantities import instant_ms
from manifold.campaigns.rehearsal import Fleet, Simulation
from manifold.campaigns.standing import Status
from manifold.campaigns.step import Decide, Policy, Release, Wake, step
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused
from tests.manifold.campaigns.plans import ALWAYS, NOW, POLICY, document, fleet_here, proposed, vins

HOUR = 3_600_000
DAY = 24 * HOUR


def two_waves(number: int = 10, **gate: Any) -> dict[str, Any]:
    return document(number=number, waves=[{"name": "first", "size": "20%", "gate": gate}, {"name": "rest", "size": "rest"}])


def releases(world: Simulation) -> list[Released]:
    return [fact for fact in world.facts if isinstance(fact, Released)]


def decisions(world: Simulation) -> list[r.Command]:
    """What the campaigner decided after the start, without what it had seen."""
    commands = [fact.command for fact in world.facts if isinstance(fact, Recorded)]
    mine = [command for command in commands if command.by == POLICY.by and not isinstance(command, r.Start)]
    return [replace(command, seen=0) for command in mine]


def first_wave(plan: dict[str, Any]) -> set[str]:
    checked = plan_of(plan)
    assert isinstance(checked, Plan)
    waves = assign(checked, [r.Target(vin) for vin in plan["targets"]["vins"]])
    assert not isinstance(waves, Refused)
    return {target.vin for target in waves[0]}


def test_nothing_happens_before_the_approval_and_the_start() -> None:
    world = Simulation(fleet_here(10), POLICY, NOW)
    world.order(r.Propose("maps-47", "author", plan=document(starts="2026-12-02T00:00:00Z")))
    assert step(world.campaign, NOW, vins(10), POLICY) == []

    world.order(r.Approve("maps-47", "ann"))

    starts = instant_ms("2026-12-02T00:00:00Z")
    assert step(world.campaign, NOW, vins(10), POLICY) == [Wake(starts)]
    (effect,) = step(world.campaign, starts, vins(10), POLICY)
    assert isinstance(effect, Decide)
    assert effect.command == r.Start("maps-47", POLICY.by, seen=world.facts[-1].seq)


def test_all_who_are_here_are_released_at_once_without_a_rate() -> None:
    world = proposed(document(), fleet_here(10))

    world.run(NOW + 1)

    assert [sorted(release.vins) for release in releases(world)] == [list(vins(10))]


def test_who_is_away_waits_in_the_campaign_and_is_released_when_it_comes() -> None:
    fleet = Fleet(dict.fromkeys(vins(9), ALWAYS) | {vins(10)[9]: ((NOW + HOUR, NOW + 2 * HOUR),)})
    world = proposed(document(), fleet)

    world.run(NOW + DAY)

    assert [(release.at_ms - NOW, len(release.vins)) for release in releases(world)] == [(0, 9), (HOUR, 1)]
    assert world.campaign.decided.stage is Stage.COMPLETED


def test_with_away_queue_everybody_is_released_at_once() -> None:
    world = proposed(document(away="queue"), Fleet({}))

    world.run(NOW + 1)

    assert [len(release.vins) for release in releases(world)] == [10]


def test_a_release_is_divided_by_wave_and_by_its_largest_size() -> None:
    world = proposed(document(), fleet_here(10), policy=Policy(max_vins=4))

    world.run(NOW + 1)

    assert [(release.step, len(release.vins)) for release in releases(world)] == [(1, 4), (2, 4), (3, 2)]


def test_the_next_wave_opens_when_the_soak_is_over() -> None:
    world = proposed(two_waves(soak="2h"), fleet_here(10))

    world.run(NOW + DAY)

    assert [(release.wave, release.at_ms - NOW, len(release.vins)) for release in releases(world)] == [
        (0, 0, 2),
        (1, 2 * HOUR + 1000, 8),
    ]
    assert [type(decision) for decision in decisions(world)] == [r.Hold, r.Pass, r.Complete]


def test_a_gate_without_soak_and_approval_passes_at_once_with_its_counts() -> None:
    world = proposed(two_waves(), fleet_here(10))

    world.run(NOW + DAY)

    counts = {"targets": 2, "released": 2, "known": 2, "success": 2}
    assert decisions(world)[0] == r.Pass("maps-47", POLICY.by, wave=0, counts=counts)


def test_a_failure_keeps_the_gate_closed_and_patience_only_holds() -> None:
    plan = two_waves(success="100%", patience="5h")
    world = proposed(plan, fleet_here(10, failing=frozenset(sorted(first_wave(plan))[:1])))

    world.run(NOW + DAY)

    assert [type(decision) for decision in decisions(world)] == [r.Hold]
    assert (world.campaign.decided.stage, world.campaign.decided.held_because) == (Stage.HELD, "patience")
    world.order(r.Pass("maps-47", "ann", wave=0, why="the one that failed is known to be broken"))
    world.run(NOW + 2 * DAY)
    assert len(releases(world)) == 2


def test_a_gate_waits_for_the_people_who_approve_it() -> None:
    world = proposed(two_waves(approve=2), fleet_here(10))

    world.run(NOW + DAY)

    orders = [fact.command for fact in world.facts if isinstance(fact, Recorded)]
    held = next(place for place, order in enumerate(orders) if isinstance(order, r.Hold))
    assert [type(order) for order in orders[held:]] == [r.Hold, r.Approve, r.Approve, r.Pass, r.Complete]
    first = next(
        place for place, fact in enumerate(world.facts) if isinstance(fact, Recorded) and fact.command is orders[held + 1]
    )
    one_approves = fold(Campaign(), world.facts[: first + 1])
    assert not [effect for effect in step(one_approves, NOW + HOUR, vins(10), POLICY) if not isinstance(effect, Wake)]


def test_a_rule_trips_on_the_outcome_that_crosses_it_and_counts_anew_when_accepted() -> None:
    rules = [{"name": "r1", "count": ["failed"], "over": 1}]
    late = dict.fromkeys(vins(10)[2:], ((NOW + HOUR, NOW + DAY),))
    fleet = Fleet(dict.fromkeys(vins(2), ALWAYS) | late, failing=frozenset(vins(3)))
    world = proposed(document(rules=rules), fleet)

    world.run(NOW + DAY)

    assert decisions(world) == [r.Pause("maps-47", POLICY.by, rule="r1", counts={"known": 2, "count": 2})]
    assert (world.campaign.decided.stage, len(releases(world))) == (Stage.PAUSED, 1)
    world.order(r.Resume("maps-47", "ann", accept=("r1",)))
    world.run(NOW + DAY)
    assert world.campaign.decided.stage is Stage.COMPLETED  # one more failure is not over 1
    assert world.campaign.total(Status.FAILED) == 3


@pytest.mark.parametrize(
    ("rule", "trips"),
    [
        ({"over": "40%"}, False),  # 4 of 10
        ({"over": "39.99%"}, True),
        ({"over": "10%", "at_least": 11}, False),
        ({"over": 3}, True),
        ({"over": 4}, False),
        ({"over": 3, "in": "wave"}, True),
        ({"over": 3, "in": "30m"}, True),
    ],
)
def test_a_rule_compares_in_whole_numbers(rule: dict[str, Any], trips: bool) -> None:
    rules = [{"name": "r1", "count": ["failed"], **rule}]
    world = proposed(document(rules=rules), fleet_here(10, failing=frozenset(vins(4))))

    world.run(NOW + DAY)

    assert (world.campaign.decided.stage is Stage.PAUSED) == trips


def test_a_rule_of_a_duration_forgets_what_is_older() -> None:
    visits = {vin: ((NOW + HOUR * place, NOW + DAY),) for place, vin in enumerate(vins(10))}
    rules = [{"name": "r1", "count": ["failed"], "over": 1, "in": "30m"}]
    world = proposed(document(rules=rules), Fleet(visits, failing=frozenset(vins(10))))

    world.run(NOW + DAY)

    assert (world.campaign.decided.stage, world.campaign.total(Status.FAILED)) == (Stage.COMPLETED, 10)


def test_an_alert_is_noted_once_and_stops_nothing() -> None:
    rules = [{"name": "r1", "count": ["failed"], "over": 1, "then": "alert"}]
    world = proposed(document(rules=rules), fleet_here(10, failing=frozenset(vins(4))))

    world.run(NOW + DAY)

    assert [type(decision) for decision in decisions(world)] == [r.Note, r.Complete]


def test_a_failed_target_is_released_again_after_its_pause_and_counts_when_used_up() -> None:
    plan = document(retry={"times": 2, "after": "6h"}, rules=[{"name": "r1", "count": ["failed"], "over": 0}])
    world = proposed(plan, fleet_here(10, failing=frozenset(vins(1))))

    world.run(NOW + 2 * DAY)

    again = [release.at_ms - NOW for release in releases(world) if vins(1)[0] in release.vins]
    assert again == [0, 6 * HOUR + 1000, 12 * HOUR + 2000]
    assert world.campaign.decided.tripped == {"r1"}


def test_a_release_ends_with_the_window_of_its_zone() -> None:
    zones = ["Europe/Berlin", "Asia/Tokyo", None]
    targets = [r.Target(vin, zones[place % 3]) for place, vin in enumerate(vins(9))]
    window = {"from": "22:00", "to": "05:00", "else": "America/New_York"}
    world = proposed(document(targets={"file": "list.parquet"}, window=window), fleet_here(9), targets)

    world.run(NOW + 2 * DAY)

    assert [(release.at_ms, release.until_ms, len(release.vins)) for release in releases(world)] == [
        (instant_ms(begin), instant_ms(end), 3)
        for begin, end in [
            ("2026-12-01T13:00:00Z", "2026-12-01T20:00:00Z"),
            ("2026-12-01T21:00:00Z", "2026-12-02T04:00:00Z"),
            ("2026-12-02T03:00:00Z", "2026-12-02T10:00:00Z"),
        ]
    ]


def test_nothing_is_released_when_the_window_is_about_to_close() -> None:
    comes = instant_ms("2026-12-02T04:59:40Z")
    plan = document(number=1, window={"from": "22:00", "to": "05:00"})
    world = proposed(plan, Fleet({vins(1)[0]: ((comes, comes + 2 * DAY),)}))

    world.run(NOW + 3 * DAY)

    assert [release.at_ms for release in releases(world)] == [instant_ms("2026-12-02T22:00:00Z")]


def test_the_end_of_the_plan_completes_the_campaign_and_expires_who_waits() -> None:
    world = proposed(document(), Fleet({}))

    world.run(NOW + 30 * DAY)

    assert decisions(world) == [r.Complete("maps-47", POLICY.by, because="ends", counts={"waiting": 10})]
    assert world.campaign.status_of(vins(1)[0]) is Status.EXPIRED


@pytest.mark.parametrize("stop", [r.Pause("maps-47", "ann"), r.Cancel("maps-47", "ann")])
def test_after_a_stop_nothing_is_released(stop: r.Command) -> None:
    world = proposed(document(rate=1), fleet_here(10))
    world.run(NOW + 90_000)

    world.order(stop)

    assert world.campaign.decided.is_braked
    for later in (0, HOUR, DAY):
        assert not [effect for effect in step(world.campaign, NOW + later, vins(10), POLICY) if isinstance(effect, Release)]


def test_a_campaign_whose_waves_do_not_fit_the_list_does_not_start() -> None:
    waves = [{"name": name, "size": 5} for name in ("a", "b", "c")]
    world = proposed(document(waves=waves), fleet_here(10))

    world.run(NOW + DAY)

    assert world.campaign.problem == "waves[2].size 5: no target is left for this wave; make it or others smaller"
    assert world.campaign.decided.stage is Stage.PROPOSED


ANSWERS = {"by": "answer", "within": "2h"}


def test_a_target_is_a_success_when_its_vehicle_answers_done() -> None:
    world = proposed(document(success=ANSWERS), fleet_here(10, answer_ms=HOUR))

    world.run(NOW + 1000)
    assert (world.campaign.total(Status.RELEASED), world.campaign.total(Status.CONFIRMED)) == (10, 0)
    world.run(NOW + DAY)

    assert (world.campaign.decided.stage, world.campaign.total(Status.CONFIRMED)) == (Stage.COMPLETED, 10)


def test_who_does_not_answer_within_the_time_is_silent_by_one_record() -> None:
    answers = dict.fromkeys(vins(3))
    world = proposed(document(success=ANSWERS), fleet_here(10, answers=answers))

    world.run(NOW + 2 * HOUR)
    assert world.campaign.total(Status.SILENT) == 0
    world.run(NOW + DAY)

    (silent,) = (decision for decision in decisions(world) if isinstance(decision, r.Silent))
    assert silent.before_ms == NOW + 120_000  # a sixtieth of two hours; they had acknowledged at NOW + 1 s
    assert (world.campaign.total(Status.SILENT), world.campaign.total(Status.CONFIRMED)) == (3, 7)
    assert world.campaign.decided.stage is Stage.COMPLETED


def test_who_is_busy_is_released_again_after_the_pause_and_not_before() -> None:
    retry = {"times": 1, "after": "6h", "on": ["busy"]}
    answers = {vins(2)[0]: Answer.BUSY, vins(2)[1]: Answer.REFUSED}
    world = proposed(document(success=ANSWERS, retry=retry), fleet_here(10, answers=answers))

    world.run(NOW + DAY)

    times = [release.at_ms - NOW for release in releases(world) if vins(1)[0] in release.vins]
    assert times == [0, 6 * HOUR + 2000]
    assert sum(vins(2)[1] in release.vins for release in releases(world)) == 1
    assert [world.campaign.status_of(vin) for vin in vins(3)] == [Status.BUSY, Status.REJECTED, Status.CONFIRMED]


def test_who_was_silent_is_awaited_anew_after_its_retry() -> None:
    retry = {"times": 1, "after": "6h", "on": ["silent"]}
    world = proposed(document(number=1, success=ANSWERS, retry=retry), fleet_here(1, answers=dict.fromkeys(vins(1))))

    world.run(NOW + DAY)

    assert [type(decision) for decision in decisions(world)] == [r.Silent, r.Silent, r.Complete]
    assert [release.at_ms - NOW for release in releases(world)] == [0, 8 * HOUR + 120_000]


def test_a_gate_counts_answers_and_not_acknowledgements() -> None:
    plan = two_waves(success="100%") | {"success": ANSWERS}
    refuses = min(first_wave(plan))
    world = proposed(plan, fleet_here(10, answers={refuses: Answer.REFUSED}))

    world.run(NOW + DAY)

    assert (len(releases(world)), world.campaign.decided.wave) == (1, 0)


def test_silence_is_recorded_during_a_pause_too() -> None:
    world = proposed(document(success=ANSWERS), fleet_here(10, answers=dict.fromkeys(vins(10))))
    world.run(NOW + 2000)
    world.order(r.Pause("maps-47", "ann"))

    effects = step(world.campaign, NOW + 2 * HOUR + 120_000, vins(10), POLICY)

    assert [type(effect.command) for effect in effects if isinstance(effect, Decide)] == [r.Silent]
