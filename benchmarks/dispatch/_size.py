"""The size of a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Counts, all of one run. Sharing the machine with 5,000 vehicles takes two cores at least."""

    vehicles: int = 5000  # connected, for everything but the sustained rates
    busy: int = 500  # vehicles over which rates are sustained
    deliveries: int = 100_000  # of each sustained rate
    owners: int = 1_000_000  # that Redis knows, where cost by their number is asked
    trigger_ids: int = 100_000
    drain: int = 1_000_000
    beats: int = 50_000
    latency_s: float = 10.0  # at each load

    @classmethod
    def of(cls, part: float) -> "Size":
        """`part` of the full size, and no less than what still says something."""
        full = cls()
        return cls(
            vehicles=max(200, int(full.vehicles * part)),
            busy=max(100, min(full.busy, int(full.busy * part * 10))),
            deliveries=max(5_000, int(full.deliveries * part)),
            owners=max(10_000, int(full.owners * part)),
            trigger_ids=max(1_000, int(full.trigger_ids * part)),
            drain=max(10_000, int(full.drain * part)),
            beats=max(5_000, int(full.beats * part)),
            latency_s=max(3.0, full.latency_s * part),
        )
