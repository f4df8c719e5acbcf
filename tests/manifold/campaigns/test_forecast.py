"""The dry run is deterministic, and the forecast holds for fleets that behave as in the past."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from manifold.campaigns.draws import Draw
from manifold.campaigns.facts import Ended
from manifold.campaigns.forecast import Forecast, forecast
from manifold.campaigns.rehearsal import Fleet, Rehearsal, rehearse, report
from manifold.campaigns.step import Policy
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused
from manifold.contracts.seq import unix_ms_of
from tests.manifold.campaigns.plans import NOW, POLICY, document, fleet_here, proposed, vins

NUMBER = 60
MINUTE, HOUR = 60_000, 3_600_000
# Of ten vehicles, one is never seen; the others connect within minutes to two days.
ABSENCES = [0, 0, 5 * MINUTE, 20 * MINUTE, HOUR, 3 * HOUR, 8 * HOUR, 20 * HOUR, 45 * HOUR, None]
GATE = {"released": "60%", "known": "90%", "soak": "1h"}
WAVES = [{"name": "first", "size": "10%", "gate": GATE}, {"name": "rest", "size": "rest"}]
PLANS = {
    "one wave": document(number=NUMBER),
    "a rate": document(number=NUMBER, rate=2),
    "a queue": document(number=NUMBER, rate=2, away="queue", window={"from": "22:00", "to": "05:00"}),
    "a queue of two waves": document(number=NUMBER, rate=7, away="queue", waves=WAVES, window={"from": "22:00", "to": "05:00"}),
    "two waves": document(number=NUMBER, waves=WAVES),
    "a window": document(number=NUMBER, waves=WAVES, rate=5, window={"from": "22:00", "to": "05:00", "else": "Europe/Berlin"}),
}


def drawn_fleet(absences_ms: Sequence[int | None], seed: int) -> Fleet:
    """A fleet whose vehicles connect as they did in the past and stay."""
    waits = random.Random(seed).choices(absences_ms, k=NUMBER)
    return Fleet({vin: ((NOW + wait, 1 << 60),) for vin, wait in zip(vins(NUMBER), waits, strict=True) if wait is not None})


def delivered(plan: dict[str, Any], fleet: Fleet) -> list[int]:
    """When each target was delivered in a rehearsal with this fleet, oldest first (Unix ms)."""
    result = rehearse(plan, (), fleet, POLICY, NOW)
    assert isinstance(result, Rehearsal)
    return [unix_ms_of(fact.seq) for fact in result.facts if isinstance(fact, Ended) and fact.ending == "delivered"]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", PLANS)
def test_a_draw_of_the_forecast_equals_its_rehearsal(name: str, seed: int) -> None:
    fleet, campaign = drawn_fleet(ABSENCES, seed), proposed(PLANS[name], fleet_here(NUMBER)).campaign
    plan = campaign.decided.plan
    assert plan is not None
    zone = "" if plan.window is None else plan.window.zone_of(None)
    comes = {vin: visits[0][0] for vin, visits in fleet.visits.items()}
    arrivals = [(campaign.roster.wave_of(vin), comes.get(vin), zone, 1) for vin in campaign.roster.vins]

    played = Draw(plan, arrivals, POLICY, NOW, fleet.ack_ms).play()

    assert [at_ms for at_ms, number in played for _ in range(number)] == delivered(PLANS[name], fleet)


@pytest.mark.parametrize("name", ["a rate", "a queue"])
def test_most_fleets_are_delivered_between_p10_and_p90_of_the_forecast(name: str) -> None:
    plan = PLANS[name]
    bounds = forecast(proposed(plan, fleet_here(NUMBER)).campaign, ABSENCES, POLICY, NOW).delivered[50]

    times = [delivered(plan, drawn_fleet(ABSENCES, seed))[NUMBER // 2 - 1] for seed in range(10)]

    assert bounds.p10 is not None
    assert bounds.p90 is not None
    assert sum(bounds.p10 <= at_ms <= bounds.p90 for at_ms in times) >= 6


@pytest.mark.parametrize("name", PLANS)
def test_for_a_connected_fleet_the_forecast_equals_the_rehearsal(name: str) -> None:
    found = forecast(proposed(PLANS[name], fleet_here(NUMBER)).campaign, [0], POLICY, NOW)

    result = rehearse(PLANS[name], (), fleet_here(NUMBER), POLICY, NOW)
    assert isinstance(result, Rehearsal)
    end = result.releases[-1].at_ms + 1000
    assert (found.end.p10, found.end.p90, found.never) == (end, end, 0)


def test_never_seen_vehicles_are_counted_and_the_plan_sets_the_end() -> None:
    campaign = proposed(document(number=NUMBER), fleet_here(NUMBER)).campaign
    found = forecast(campaign, ABSENCES, POLICY, NOW)

    assert campaign.decided.plan is not None
    assert NUMBER // 20 <= found.never <= NUMBER // 5
    assert found.end.p50 == campaign.decided.plan.ends_ms
    assert found.delivered[99].p10 is None


def test_a_forecast_is_deterministic() -> None:
    campaign = proposed(PLANS["two waves"], fleet_here(NUMBER)).campaign

    first, second = (forecast(campaign, ABSENCES, POLICY, NOW) for _ in range(2))

    assert isinstance(first, Forecast)
    assert first == second


def test_a_dry_run_is_deterministic_and_names_every_target() -> None:
    fleet = drawn_fleet(ABSENCES, 1)

    first, second = (rehearse(PLANS["two waves"], (), fleet, POLICY, NOW, tzdata="2026b") for _ in range(2))

    assert isinstance(first, Rehearsal)
    assert isinstance(second, Rehearsal)
    assert report(first) == report(second)
    told = json.loads(report(first))
    assert sorted(vin for wave in told["waves"] for vin in wave["vins"]) == list(vins(NUMBER))
    assert told["waiting"] == NUMBER - len(fleet.visits)


@pytest.mark.parametrize(
    ("fields", "targets", "reason"),
    [
        ({"rate": 0}, (), "rate 0: must be 1 to 1000000"),
        ({"targets": {"file": "a.csv"}}, (), "the list of targets is empty"),
        ({"targets": {"file": "a.csv"}}, (r.Target("A", None, "last"),), 'targets: A is listed for wave "last"; name one of all'),
        ({"window": {"from": "22:00", "to": "22:01"}}, (), None),
        ({"ends": "2026-12-01T11:59:59Z"}, (), 'ends "2026-12-01T11:59:59Z": must be in the future'),
        ({"campaign": "a b"}, (), "campaign: must be 1 to 128"),
    ],
)
def test_a_dry_run_is_refused_as_the_proposal_would_be(
    fields: dict[str, Any], targets: tuple[r.Target, ...], reason: str | None
) -> None:
    told = rehearse(document(**fields), targets, fleet_here(10), POLICY, NOW)

    assert isinstance(told, Rehearsal) if reason is None else isinstance(told, Refused) and told.reason.startswith(reason)


def test_a_window_shorter_than_the_ack_deadline_is_refused() -> None:
    plan = document(window={"from": "22:00", "to": "22:01"})

    told = rehearse(plan, (), fleet_here(10), Policy(ack_deadline_ms=61_000), NOW)

    assert told == Refused('window.to "22:01": must be open for at least the ack deadline of 61 s')
