"""The metrics of open campaigns: their values, and how many of them there are at most."""

from typing import Any

import pytest
from msgspec.structs import replace

from manifold.campaigns.fold import Campaign
from manifold.campaigns.service import _campaign_metrics
from manifold.campaigns.service._campaign_metrics import MAX_CAMPAIGNS, MAX_WAVES, OTHERS, CampaignMetrics
from manifold.contracts import campaigns as r
from tests.manifold.campaigns.plans import NOW, document, fleet_here, proposed

HOUR_MS = 3_600_000
Values = dict[tuple[str, ...], float]


def shown(*campaigns: tuple[str, Campaign], here: dict[str, int] | None = None) -> dict[str, Values]:
    """The values of each metric, by its labels."""
    metrics = CampaignMetrics()
    metrics.show(campaigns, here or {})
    found: dict[str, Values] = {}
    for sample in (sample for family in metrics.collect() for sample in family.samples):
        values = found.setdefault(sample.name.removeprefix("manifold_campaign_"), {})
        assert tuple(sample.labels.values()) not in values
        values[tuple(sample.labels.values())] = sample.value
    return found


def canary(**gate: Any) -> dict[str, Any]:
    return document(waves=[{"name": "canary", "size": 4, "gate": gate}, {"name": "rest", "size": "rest"}], rate=60)


def test_a_campaign_shows_targets_by_wave_and_state_and_its_rate() -> None:
    world = proposed(canary(success="100%"), fleet_here(10, failing=frozenset({"VIN00000"})))
    world.run(NOW + HOUR_MS)
    of_canary = world.campaign.tallies[0]
    found = shown(("maps-47", world.campaign), here={"maps-47": 3})

    targets = {labels[1:]: number for labels, number in found["targets"].items()}
    assert sum(targets.values()) == 10
    assert {state: number for (wave, state), number in targets.items() if wave == "canary" and number} == {
        status.value: number for status, number in of_canary.items() if number
    }
    assert (targets["rest", "waiting"], targets["rest", "released"]) == (world.campaign.tallies[1]["waiting"], 0)  # type: ignore[index]
    assert found["released_total"] == {("maps-47",): sum(world.campaign.releases.values())}
    assert (found["rate_limit"], found["here"]) == ({("maps-47",): 60}, {("maps-47",): 3})
    assert (found["braked"], found["tripped_rules"]) == ({("maps-47",): 0}, {("maps-47",): 0})


def test_a_rule_that_pauses_shows_the_brake_and_what_a_resume_has_to_accept() -> None:
    rule = {"name": "r1", "count": ["failed"], "over": 0, "in": "campaign"}
    world = proposed(document(rules=[rule]), fleet_here(10, failing=frozenset({"VIN00003"})))
    world.run(NOW + HOUR_MS)
    found = shown(("maps-47", world.campaign))
    assert (found["braked"], found["tripped_rules"]) == ({("maps-47",): 1}, {("maps-47",): 1})
    assert "rate_limit" not in found

    world.order(r.Resume("maps-47", "anna", accept=("r1",)))
    found = shown(("maps-47", world.campaign))
    assert (found["braked"], found["tripped_rules"]) == ({("maps-47",): 0}, {("maps-47",): 0})


@pytest.mark.parametrize(
    ("gate", "hours", "held"),
    [
        ({"soak": "6h"}, 2, {"soak": 2 * 3600}),
        ({"soak": "1h", "approve": 1}, 3, {"approval": 2 * 3600}),
        ({"success": "100%", "patience": "1h"}, 3, {"patience": 2 * 3600}),
        ({}, 0, {}),
    ],
)
def test_a_held_gate_shows_for_how_long_and_what_it_waits_for(
    gate: dict[str, Any], hours: int, held: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = frozenset(document()["targets"]["vins"]) if "success" in gate else frozenset[str]()
    world = proposed(canary(**gate), fleet_here(10, failing=failing))
    world.run(NOW + HOUR_MS * (1 if "success" in gate else 0) + 10_000)
    monkeypatch.setattr(_campaign_metrics, "wall_clock_ms", lambda: NOW + hours * HOUR_MS)
    nobody = replace(world.campaign, decided=replace(world.campaign.decided, passed_by=frozenset()))
    found = shown(("maps-47", nobody)).get("gate_held_seconds", {})
    assert {because: pytest.approx(seconds, abs=30) for (_, because), seconds in found.items()} == held


def test_many_campaigns_and_waves_do_not_make_endless_metrics() -> None:
    waves = [{"name": f"w{place}", "size": 1} for place in range(29)] + [{"name": "rest", "size": "rest"}]
    world = proposed(document(number=40, waves=waves), fleet_here(0))
    world.run(NOW + 1000)
    found = shown(*((f"c{number}", world.campaign) for number in range(MAX_CAMPAIGNS + 20)))

    assert len(found["braked"]) == MAX_CAMPAIGNS
    waves_of_one = {wave for name, wave, _ in found["targets"] if name == "c0"}
    assert len(waves_of_one) == MAX_WAVES + 1
    assert found["targets"]["c0", OTHERS, "waiting"] == 40 - MAX_WAVES
