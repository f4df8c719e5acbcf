"""A record that is as it happened has nothing false in it; whatever is planted in it is found and named."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from manifold.campaigns.facts import Answer, Answered, Ended, Ending, Fact, Recorded, Released
from manifold.campaigns.falsifications import Kind, Sent
from manifold.campaigns.parsing import plan_of
from manifold.campaigns.plan import Plan
from manifold.campaigns.proof import encode, report
from manifold.campaigns.quantities import instant_ms
from manifold.campaigns.rehearsal import Fleet, Simulation
from manifold.campaigns.verification import verify
from manifold.contracts import campaigns as r
from manifold.contracts.seq import seq_of
from tests.manifold.campaigns.plans import ALWAYS, NOW, POLICY, document, fleet_here, proposed, vins
from tests.manifold.campaigns.test_promises import DAY, MINUTE, Run, quick, rehearsed, runs

HOUR = 3_600_000
NAME = "maps-47"
WAVES = [
    {"name": "first", "size": "20%", "gate": {"success": "50%", "soak": "1h", "approve": 1}},
    {"name": "rest", "size": "rest"},
]
RULES = [{"name": "r1", "count": ["failed"], "over": 3}]


@quick
@given(runs())
def test_nothing_is_false_in_the_record_of_a_rehearsal(run: Run) -> None:
    _, result = rehearsed(run)

    assert verify(result.facts) == ()


def orders(plan: dict[str, Any]) -> st.SearchStrategy[r.Command]:
    """What people may order while a campaign runs."""
    return st.sampled_from(
        [
            r.Pause(NAME, "ann"),
            r.Resume(NAME, "ann", accept=("r1",)),
            r.Retry(NAME, "ann", ended=("failed", "expired")),
            r.Pass(NAME, "ann", wave=0, why="it is fine"),
            r.Amend(NAME, "ann", plan=plan | {"rate": 1}),
            r.Amend(NAME, "ann", plan=plan | {"rate": 50}),
            r.Amend(NAME, "ann", plan={name: value for name, value in plan.items() if name not in ("window", "rules")}),
            r.Approve(NAME, "bob"),
            r.Cancel(NAME, "ann"),
        ]
    )


@settings(max_examples=40, deadline=None)
@given(runs(), st.data())
def test_nothing_is_false_whatever_people_order_meanwhile(run: Run, data: st.DataObject) -> None:
    document_of, targets, fleet, now = run
    world = Simulation(fleet, POLICY, now)
    world.order(r.Propose(NAME, "author", plan=document_of))
    world.order(r.AddTargets(NAME, "author", targets=tuple(targets)))
    world.order(r.Approve(NAME, "approver 1"))
    plan = plan_of(document_of)
    assert isinstance(plan, Plan)

    for pause_ms, order in data.draw(st.lists(st.tuples(st.integers(1, 200_000_000), orders(document_of)), max_size=6)):
        world.run(min(world.now_ms + pause_ms, plan.ends_ms))
        world.order(order)
    world.run(plan.ends_ms)

    assert verify(random.Random(0).sample(world.facts, len(world.facts))) == ()


def finished(**fields: Any) -> list[Fact]:
    """The record of a campaign for 20 vehicles, of which one fails, under a rate of 5 a minute."""
    plan = document(number=20, waves=WAVES, rate=5, **fields)
    world = proposed(plan, fleet_here(20, failing=frozenset(vins(20)[-1:]), answers={vins(20)[0]: None}))
    world.run(NOW + DAY)
    return list(world.facts)


def first(facts: list[Fact], kind: type[Any], **having: Any) -> int:
    """The place of the first such fact or order."""
    for place, fact in enumerate(facts):
        what = fact.command if isinstance(fact, Recorded) else fact
        if isinstance(what, kind) and all(getattr(what, name) == value for name, value in having.items()):
            return place
    raise AssertionError(kind)


def repeat_a_release(facts: list[Fact]) -> list[Fact]:
    *before, end = facts
    steps = [fact.step for fact in facts if isinstance(fact, Released)]
    again = Released(seq_of(NOW + DAY - HOUR, 0, 0), 1, max(steps) + 1, released_first(facts, 1)[:1])
    return [*before, again, replace(end, seq=seq_of(NOW + DAY, 0, 0))]


def released_first(facts: list[Fact], wave: int) -> tuple[str, ...]:
    release = facts[first(facts, Released, wave=wave)]
    assert isinstance(release, Released)
    return release.vins


def drop(kind: type[Any], **having: Any) -> Callable[[list[Fact]], list[Fact]]:
    def planted(facts: list[Fact]) -> list[Fact]:
        place = first(facts, kind, **having)
        return facts[:place] + facts[place + 1 :]

    return planted


def change(kind: type[Any], having: dict[str, Any], **to: Any) -> Callable[[list[Fact]], list[Fact]]:
    def planted(facts: list[Fact]) -> list[Fact]:
        place = first(facts, kind, **having)
        fact = facts[place]
        made = replace(fact, command=replace(fact.command, **to)) if isinstance(fact, Recorded) else replace(fact, **to)
        return [*facts[:place], made, *facts[place + 1 :]]

    return planted


def stop_before(order: r.Command, wave: int) -> Callable[[list[Fact]], list[Fact]]:
    """A stop three seconds before the first release of a wave."""

    def planted(facts: list[Fact]) -> list[Fact]:
        release = facts[first(facts, Released, wave=wave)]
        assert isinstance(release, Released)
        return [*facts, Recorded(seq_of(release.at_ms - 3000, 1, 0), order)]

    return planted


def add_a_stranger(facts: list[Fact]) -> list[Fact]:
    return change(Released, {"wave": 1}, vins=(*released_first(facts, 1)[1:], "STRANGER"))(facts)


PLANTS: list[tuple[str, Callable[[list[Fact]], list[Fact]], Kind]] = [
    ("a second release", repeat_a_release, Kind.RELEASED_TWICE),
    ("one more than the rate", change(Released, {"step": 2}, vins=vins(20)[:6]), Kind.OVER_RATE),
    ("a pause that was not obeyed", stop_before(r.Pause(NAME, "ann"), 1), Kind.AFTER_STOP),
    ("a cancel that was not obeyed", stop_before(r.Cancel(NAME, "ann"), 1), Kind.AFTER_STOP),
    ("a vehicle that is no target", add_a_stranger, Kind.NOT_A_TARGET),
    ("a release that is gone", drop(Released, wave=1), Kind.LOST),
    ("an outcome that is gone", drop(Ended, ending=Ending.FAILED), Kind.MISCOUNTED),
    ("an outcome that was altered", change(Ended, {"ending": Ending.FAILED}, ending=Ending.DELIVERED), Kind.MISCOUNTED),
    ("an approval of the plan that is gone", drop(r.Approve, wave=None), Kind.WITHOUT_APPROVAL),
    ("an approval of the gate that is gone", drop(r.Approve, wave=0), Kind.WITHOUT_APPROVAL),
    ("a soak that is gone", drop(r.Hold), Kind.GATE),
    ("a gate that was not passed", drop(r.Pass), Kind.GATE),
    ("counts that were altered", change(r.Pass, {}, counts={"targets": 4}), Kind.MISCOUNTED),
    ("an answer that is gone", drop(Answered), Kind.MISCOUNTED),
    ("silence before its time", change(r.Silent, {}, before_ms=NOW + DAY), Kind.TOO_EARLY),
    ("an end that came too early", change(r.Complete, {}, because="ends"), Kind.TOO_EARLY),
]


@pytest.mark.parametrize(("plant", "kind"), [pytest.param(plant, kind, id=name) for name, plant, kind in PLANTS])
def test_what_is_planted_is_found(plant: Callable[[list[Fact]], list[Fact]], kind: Kind) -> None:
    facts = finished(success={"by": "answer", "within": "10m"})
    assert verify(facts) == ()

    assert kind in {each.kind for each in verify(plant(facts))}


def test_no_vehicle_falsifies_the_record_by_its_answers() -> None:
    facts = finished(success={"by": "answer", "within": "10m"})
    release = next(fact.seq for fact in facts if isinstance(fact, Released))
    last = max(fact.seq for fact in facts)
    claims = [Answered(last + 1, "STRANGER", release, Answer.FAILED), Answered(last + 2, vins(1)[0], 1, Answer.FAILED)]

    assert verify([*facts, *claims]) == ()


def test_a_release_outside_the_window_of_its_vehicle_is_found() -> None:
    targets = [r.Target(vin, "Asia/Tokyo" if place else "Europe/Berlin") for place, vin in enumerate(vins(4))]
    window = {"from": "22:00", "to": "05:00"}
    world = proposed(document(targets={"file": "a.csv"}, window=window), fleet_here(4), targets)
    world.run(NOW + DAY)
    assert verify(world.facts) == ()

    place = first(world.facts, Released, vins=vins(1))
    moved = replace(world.facts[place], seq=seq_of(NOW, 0, 4000))
    found = verify([*world.facts[:place], moved, *world.facts[place + 1 :]])

    assert [(each.kind, each.vin) for each in found if each.kind is Kind.OUTSIDE_WINDOW] == [(Kind.OUTSIDE_WINDOW, vins(1)[0])]


def test_a_retry_before_its_time_is_found() -> None:
    world = proposed(document(number=1, retry={"times": 1, "after": "6h"}), fleet_here(1, failing=frozenset(vins(1))))
    world.run(NOW + DAY)
    assert verify(world.facts) == ()

    again = next(place for place, fact in enumerate(world.facts) if isinstance(fact, Released) and fact.step == 2)
    an_hour = seq_of(HOUR, 0, 0) - seq_of(0, 0, 0)
    earlier = [replace(fact, seq=fact.seq - an_hour) for fact in world.facts[again:]]
    facts = [*world.facts[:again], *earlier]

    assert Kind.TOO_EARLY in {each.kind for each in verify(facts)}


def test_a_rule_that_trips_and_stops_nothing_is_found() -> None:
    visits = {vin: ((NOW + 5000 * place, 1 << 60),) for place, vin in enumerate(vins(20))}
    world = proposed(document(number=20, rules=RULES), Fleet(visits, failing=frozenset(vins(20))))
    world.run(NOW + HOUR)
    assert [each.kind for each in verify(world.facts)] == []

    loose = proposed(document(number=20), Fleet(visits, failing=frozenset(vins(20))))
    loose.run(NOW + HOUR)
    facts = change(r.Propose, {}, plan=document(number=20, rules=RULES))(list(loose.facts))

    assert [each.kind for each in verify(facts)] == [Kind.RULE]


def test_what_was_sent_after_the_window_or_the_brake_is_found() -> None:
    window = {"from": "13:00", "to": "14:00"}
    world = proposed(document(number=2, window=window), fleet_here(2))
    world.run(NOW + HOUR)
    world.order(r.Pause(NAME, "ann"))
    (release,) = (fact for fact in world.facts if isinstance(fact, Released))
    in_time, braked, late, unknown = (
        Sent(vins(2)[0], release.seq, release.at_ms + 10),
        Sent(vins(2)[0], release.seq, world.now_ms + 2001),
        Sent(vins(2)[1], release.seq, instant_ms("2026-12-01T14:00:00Z")),
        Sent("STRANGER", release.seq, release.at_ms),
    )

    found = verify(world.facts, [in_time, braked, late, unknown])

    assert sorted((each.kind, each.vin) for each in found) == [
        (Kind.AFTER_STOP, vins(2)[0]),
        (Kind.AFTER_STOP, vins(2)[1]),
        (Kind.NOT_A_TARGET, "STRANGER"),
        (Kind.OUTSIDE_WINDOW, vins(2)[1]),
    ]


def test_the_report_of_a_proved_campaign_has_its_numbers() -> None:
    facts = finished()

    proof = report(facts)

    assert (proof["state"], proof["is_proved"], proof["targets"], proof["falsifications"]) == ("completed", True, 20, [])
    assert [(wave["name"], wave["targets"]) for wave in proof["waves"]] == [("first", 4), ("rest", 16)]
    assert sum(wave["states"].get("delivered", 0) for wave in proof["waves"]) == 19
    assert (proof["most_released_in_60_s"], proof["vehicles_by_releases"]) == (5, {"1": 20})
    assert [order["do"] for order in proof["orders"]] == ["propose", "approve", "start", "hold", "approve", "pass", "complete"]
    assert proof["approved_by"] == ["approver 1"]


@quick
@given(runs(), st.integers(0, 1 << 32))
def test_any_order_of_facts_and_any_repetition_give_the_same_proof(run: Run, seed: int) -> None:
    _, result = rehearsed(run)
    mixed = [*result.facts, *result.facts[::3]]
    random.Random(seed).shuffle(mixed)

    assert encode(report(mixed)) == encode(report(result.facts))
    assert json.loads(encode(report(result.facts)))["is_proved"]


def test_the_report_names_an_order_without_effect_and_what_is_false() -> None:
    facts = drop(r.Approve, wave=None)(finished())

    proof = report(facts)

    assert not proof["is_proved"]
    start = next(order for order in proof["orders"] if order["do"] == "start")
    assert start["without_effect"] == "the plan is not approved"
    assert "without approval" in {each["kind"] for each in proof["falsifications"]}


def test_a_vehicle_that_was_released_more_than_once_is_named() -> None:
    plan = document(retry={"times": 2, "after": "1h"})
    world = proposed(plan, Fleet(dict.fromkeys(vins(10), ALWAYS), failing=frozenset(vins(1))))
    world.run(NOW + DAY)

    proof = report(world.facts)

    assert (proof["released_more_than_once"], proof["vehicles_by_releases"]) == ([vins(1)[0]], {"1": 9, "3": 1})
    assert proof["last_release_ms"] - proof["first_release_ms"] > MINUTE


def test_a_rule_that_stopped_tripping_counts_anew_when_it_trips_again() -> None:
    names = vins(20)
    times_s = [5 * place + (0 if place < 10 else 1200) for place in range(20)]
    visits = {vin: ((NOW + 1000 * time_s, 1 << 60),) for vin, time_s in zip(names, times_s, strict=True)}
    world = proposed(document(number=20), Fleet(visits, failing=frozenset({names[8], names[18]})))
    world.run(NOW + HOUR)
    recent = {"name": "recent", "count": ["failed"], "over": 0, "in": "10m"}  # trips before the ninth and the last release
    ever = {"name": "ever", "count": ["failed"], "over": 0}
    facts = change(r.Propose, {}, plan=document(number=20, rules=[recent, ever]))(list(world.facts))

    assert [each.detail.split(" trips")[0] for each in verify(facts)] == ["rule ever"]
