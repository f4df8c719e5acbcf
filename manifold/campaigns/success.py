"""What makes a target a success, and which targets are tried again."""

from typing import Literal

from msgspec import Struct

from manifold.campaigns import quantities
from manifold.campaigns.quantities import checked

Retried = Literal["failed", "busy", "rejected", "silent"]
Proof = Literal["ack", "answer"]


class Retry(Struct, frozen=True, forbid_unknown_fields=True):
    """A target that ends so is released again, a number of times."""

    times: int
    after: str
    on: tuple[Retried, ...] = ("failed",)

    def __post_init__(self) -> None:
        if not 1 <= self.times <= 20:
            raise ValueError("times: must be 1 to 20 further attempts")
        if not self.on:
            raise ValueError("on: must list at least one outcome, such as failed; leave retry out to try once")
        checked("after", quantities.duration_ms, self.after)

    def tries_again(self, ending: str) -> bool:
        """Whether a target that has ended so is released again."""
        return ending in self.on


class Success(Struct, frozen=True, forbid_unknown_fields=True):
    """What makes a target a success: its acknowledgement, or the answer `done` of the vehicle, within a time after that."""

    by: Proof = "ack"
    within: str | None = None

    def __post_init__(self) -> None:
        if (self.by == "answer") != (self.within is not None):
            raise ValueError(
                'within: belongs to answers, and to them alone; with "by": "answer" say how long to wait, such as "2h"'
            )
        if self.within is not None:
            checked("within", quantities.duration_ms, self.within)

    @property
    def within_ms(self) -> int:
        """How long an answer is awaited after the acknowledgement (ms)."""
        return 0 if self.within is None else quantities.duration_ms(self.within)
