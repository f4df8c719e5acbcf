"""How much a benchmark does: counts of a full run, and smaller ones for a quick look."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self


def full(count: float, *, least: float) -> Any:
    """A field of `Scaled`: what a full run has of it, and below what a run would say nothing any more."""
    return field(default=count, metadata={"least": least})


@dataclass(frozen=True)
class Scaled:
    """The size of a run."""

    @classmethod
    def of(cls, part: float) -> Self:
        """`part` of the full size, and no less than what still says something."""
        least = {each.name: each.metadata["least"] for each in fields(cls)}
        return cls(**{name: max(least[name], type(count)(count * part)) for name, count in asdict(cls()).items()})
