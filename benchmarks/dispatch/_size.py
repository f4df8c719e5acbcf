"""The size of a run."""

from dataclasses import dataclass, replace
from typing import Self

from benchmarks.size import Scaled, full


@dataclass(frozen=True)
class Size(Scaled):
    """Counts, all of one run. Sharing the machine with 5,000 vehicles takes two cores at least."""

    vehicles: int = full(5000, least=200)  # connected, for everything but the sustained rates
    busy: int = full(500, least=100)  # vehicles over which rates are sustained
    deliveries: int = full(100_000, least=5_000)  # of each sustained rate
    owners: int = full(1_000_000, least=10_000)  # that Redis knows, where cost by their number is asked
    trigger_ids: int = full(100_000, least=1_000)
    drain: int = full(1_000_000, least=10_000)
    beats: int = full(50_000, least=5_000)
    latency_s: float = full(10.0, least=3.0)  # at each load

    @classmethod
    def of(cls, part: float) -> Self:
        """`part` of the full size; as many busy vehicles as there are, down to a tenth of all that are connected."""
        return replace(super().of(part), busy=max(100, min(cls.busy, int(cls.busy * part * 10))))
