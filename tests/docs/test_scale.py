"""docs/guides/scale.md shows what the capacity model calculates, and its errors."""

import subprocess
import sys

import pytest

from infra import capacity
from tests.support.servers import ROOT

PAGE = (ROOT / "docs" / "guides" / "scale.md").read_text()
LAKE_SIZES = (3_000, 30_000, 300_000)


def test_the_page_has_the_models_table_and_its_error() -> None:
    assert capacity.table([capacity.Fleet(size) for size in capacity.FLEETS]) in PAGE
    predicted = capacity.predicted_s()
    error = predicted / capacity.REACHED.value - 1
    assert f"{predicted:,.0f} deliveries a second against {capacity.REACHED.value:,.0f} measured: {error:.0%} too many" in PAGE


def test_the_costs_are_printed_with_their_dates() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "infra.capacity", "--costs"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout.count(" | 2026-") == len(capacity.COSTS) + 1


@pytest.mark.parametrize(
    ("measured", "model", "worst_percent", "statement"),
    [
        ((97, 77, 76), [capacity.DISPATCHER_US.value] * 3, 17, "17 % for a delivery on the dispatcher and on Redis"),
        ((77, 75, 86), [capacity.REDIS_US.value] * 3, 13, "17 % for a delivery on the dispatcher and on Redis"),
        ((419.4, 358.0, 345.8), [capacity.ENTRY_B.value + capacity.SEEN_B.value] * 3, 16, "16 % for a vehicle in Redis"),
        ((154.3, 23.2, 7.6), [capacity.lake_bytes(size) for size in LAKE_SIZES], 10, "10 % for one in the lake"),
        ((34, 31, 15), [capacity.RECORDER_US.value] * 3, 44, "44 % on the recorder"),
        ((17, 28, 41), [capacity.HEARTBEAT_US.value] * 3, 65, "by a third to the double on heartbeats"),
        ((9, 21, 29), [capacity.HEARTBEAT_REDIS_US.value] * 3, 122, "by a third to the double on heartbeats"),
    ],
)
def test_the_models_errors_at_three_sizes_are_those_that_the_page_states(
    measured: tuple[float, ...], model: list[float], worst_percent: int, statement: str
) -> None:
    """Measured on 23 November 2026, at three sizes ten times apart."""
    errors = [abs(round((says / found - 1) * 100)) for says, found in zip(model, measured, strict=True)]
    assert max(errors) == worst_percent
    assert statement in PAGE
