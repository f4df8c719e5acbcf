"""The short form of `make faults`: a whole platform, a few faults, and the checker's verdict."""

from pathlib import Path
from random import Random

import pytest

from tests.faults.history import What, read
from tests.faults.injector import KEEPER, KINDS, Fault, Harm, faults
from tests.faults.run import Plan, play
from tests.faults.stories import stories

SHORT = (
    Fault(Harm.KILL, "recorder"),
    Fault(Harm.STOP, "dispatcher", 4.5),
    Fault(Harm.CUT, lasts_s=1.0),
    Fault(Harm.FLOOD, lasts_s=1.0),
    Fault(Harm.KILL, "tap"),
    Fault(Harm.KILL, "campaigner"),
    Fault(Harm.CLOCK, "recorder", 1.0),
    Fault(Harm.FULL, "recorder", 1.0),
    Fault(Harm.KILL, "redis"),
    Fault(Harm.BACK, "redis", 2.0),
)


@pytest.mark.slow
def test_faults_lose_reorder_and_resurrect_no_message(tmp_path: Path) -> None:
    plan = Plan(seed=1, seconds=0, home=tmp_path / "p", vehicles=20, batch=5, every_s=0.2, calm_s=0.5, only=SHORT)
    result = play(plan)

    assert result.held, "\n".join([result.trouble, *stories(read(result.history), result.verdict)])
    assert [name for name, _ in result.injected] == [str(fault) for fault in SHORT]
    verdict = result.verdict
    assert verdict.accepted == verdict.delivered > 50
    assert verdict.campaign_targets == verdict.campaign_delivered >= 20
    assert min(verdict.ecq[what] for what in (What.ACCEPTED, What.DELIVERED, What.ENDED)) > 20
    assert min(result.seen[what] for what in ("acknowledged", "recorded")) >= verdict.accepted
    for what in ("enqueued", "published", "ended"):  # reported by Redis before and after its kill, except for a moment
        assert result.seen[what] > 0.8 * verdict.accepted, f"{what} was not watched throughout"


def test_a_seed_repeats_its_faults_and_every_round_has_all_of_them() -> None:
    def round_of(seed: int) -> list[Fault]:
        source = faults(Random(seed), stop_s=30, wipes=True, tls=True)
        return [next(source) for _ in range(23)]

    assert round_of(1) == round_of(1) != round_of(2)
    assert {fault.kind for fault in round_of(1) if fault.harm is Harm.KILL} == {*KINDS, KEEPER}
    assert {fault.kind for fault in round_of(1) if fault.harm is Harm.STOP} == set(KINDS)
    assert {fault.harm for fault in round_of(1)} == set(Harm)
