"""docs/guides/scale.md shows what the capacity model calculates, its unit costs and its errors."""

import re

import pytest

from infra import capacity
from tests.support.servers import ROOT

PAGE = (ROOT / "docs" / "guides" / "scale.md").read_text()


def test_the_page_has_every_cost_and_its_date() -> None:
    assert capacity.costs_table() in PAGE


def test_the_page_has_the_models_table_and_its_error() -> None:
    assert capacity.table([capacity.Fleet(size) for size in capacity.FLEETS]) in PAGE
    predicted = capacity.predicted_s()
    error = predicted / capacity.REACHED.value - 1
    assert f"{predicted:,.0f} deliveries a second against {capacity.REACHED.value:,.0f} measured: {error:.0%} too many" in PAGE


def row(what: str) -> list[list[float]]:
    """The numbers of a row of the model at three sizes: what was measured, what the model says, its errors."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {what}"))
    return [[float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", cell)] for cell in line.split("|")[2:-1]]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        pytest.param("a vehicle in Redis;", capacity.ENTRY_B.value + capacity.SEEN_B.value, id="a vehicle"),
        pytest.param("a delivery, dispatcher;", capacity.DISPATCHER_US.value, id="a delivery, dispatcher"),
        pytest.param("a delivery, Redis", capacity.REDIS_US.value, id="a delivery, Redis"),
        pytest.param("a delivery, recorder", capacity.RECORDER_US.value, id="a delivery, recorder"),
        pytest.param("a heartbeat, dispatcher", capacity.HEARTBEAT_US.value, id="a heartbeat, dispatcher"),
        pytest.param("a heartbeat, Redis", capacity.HEARTBEAT_REDIS_US.value, id="a heartbeat, Redis"),
    ],
)
def test_the_models_errors_at_three_sizes_are_those_that_the_page_states(what: str, says: float) -> None:
    measured, model, errors = row(what)
    assert model == [says]
    assert errors == [round((says / found - 1) * 100) for found in measured]


def test_the_lake_of_a_run_of_another_size_is_foretold_as_the_page_states() -> None:
    measured, _, errors = row("lake, a delivery")
    foretold = [capacity.lake_bytes(size) for size in (3_000, 30_000, 300_000)]
    assert errors == [round((says / found - 1) * 100) for says, found in zip(foretold, measured, strict=True)]
