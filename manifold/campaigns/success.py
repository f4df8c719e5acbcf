"""The parts of a plan that define when a target is a success, and when it is retried."""

from typing import Literal

from msgspec import Struct

from manifold.campaigns import quantities
from manifold.campaigns.quantities import checked

Retried = Literal["failed", "busy", "rejected", "silent"]
Proof = Literal["ack", "answer"]


class Retry(Struct, frozen=True, forbid_unknown_fields=True):
    """When a target is released again after an attempt that was no success."""

    times: int  # the number of retries
    after: str  # how long to wait before each retry
    on: tuple[Retried, ...] = ("failed",)  # the endings after which to retry

    def __post_init__(self) -> None:
        if not 1 <= self.times <= 20:
            raise ValueError("times: must be 1 to 20 further attempts")
        if not self.on:
            raise ValueError("on: must list at least one outcome, such as failed; leave retry out to try once")
        checked("after", quantities.duration_ms, self.after)

    def tries_again(self, ending: str) -> bool:
        """Whether a target is retried after an attempt with this ending, as long as it has retries left."""
        return ending in self.on


class Success(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a target is a success by its acknowledgement, or only by the vehicle's answer `done` within a time after that."""

    by: Proof = "ack"
    within: str | None = None  # how long to wait for the answer after the acknowledgement

    def __post_init__(self) -> None:
        needs_within = self.by == "answer"
        if needs_within != (self.within is not None):
            raise ValueError(
                'within: belongs to answers, and to them alone; with "by": "answer" say how long to wait, such as "2h"'
            )
        if self.within is not None:
            checked("within", quantities.duration_ms, self.within)

    @property
    def within_ms(self) -> int:
        """How long to wait for an answer after the acknowledgement (ms); 0 if no answer is required."""
        return 0 if self.within is None else quantities.duration_ms(self.within)
