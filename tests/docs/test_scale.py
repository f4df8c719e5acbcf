"""docs/scale.md says what the model says, and the model stands on what docs/benchmarks.md says."""

from benchmarks import capacity
from tests.servers import ROOT

BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
PAGE = (ROOT / "docs" / "scale.md").read_text()


def test_every_cost_is_a_measured_one() -> None:
    assert [cost.source for cost in capacity.COSTS if cost.source not in BENCHMARKS] == []


def test_the_page_has_the_models_table_and_its_error() -> None:
    assert capacity.table([capacity.Fleet(size) for size in capacity.FLEETS]) in PAGE
    predicted = capacity.predicted_s()
    error = predicted / capacity.REACHED.value - 1
    assert f"{predicted:,.0f} deliveries a second against {capacity.REACHED.value:,.0f} measured: {error:.0%} too many" in PAGE
