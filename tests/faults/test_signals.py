"""The short form of `python -m tests.faults.signals`: some hundred messages, every fault once."""

from pathlib import Path
from random import Random

import pytest

from tests.faults.gateways import twice_or_never
from tests.faults.signals import HARMED, Plan, faults, play
from tests.support.rabbitmq import needs_rabbitmq


@pytest.mark.slow
def test_each_message_confirmed_by_rabbitmq_is_in_the_lake_exactly_once(tmp_path: Path) -> None:
    needs_rabbitmq()
    result = play(Plan(1, tmp_path / "p", count=300, stop_s=2, calm_s=0.5, every_s=0.05))

    assert result.wrong == []
    assert len(result.injected) == 2 * len(HARMED) + 1
    assert min(len(result.sent.signals), len(result.sent.statuses), len(result.sent.refused)) > 3


def test_a_seed_repeats_its_faults() -> None:
    assert faults(Random(1), 3) == faults(Random(1), 3) != faults(Random(2), 3)


def test_a_message_missing_or_duplicated_in_the_lake_is_named() -> None:
    assert twice_or_never(["a", "b"], ["b", "a", "c"]) == []  # c was not confirmed but arrived
    assert twice_or_never(["a", "b"], ["b", "b", "c", "c"]) == [
        "a is there 0 times",
        "b is there 2 times",
        "c is there 2 times",
    ]
