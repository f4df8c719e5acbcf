"""Whether a signed time is near enough to now, and how long the queue has been backed up. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from contracts.signals.codes import Code, Refusal
from contracts.signals.messages import ISO_8601, instant
from signals._received import TIMESTAMP


def check_freshness(timestamp: str, now: datetime, *, tolerance_s: float, waited_s: float, most_s: float) -> Refusal | None:
    """Why the signed time is too far from `now`; None if it is not.

    A message may be as old as the tolerance and the time that it may have waited in its queue together, and never older than
    `most_s`, because nonces are not remembered for longer. Waiting makes nothing newer: the future is not widened.
    """
    try:
        signed = instant(timestamp)
    except ValueError:
        return Refusal(Code.STALE_ERROR, "the signed time is none", f"{TIMESTAMP}: {ISO_8601}")
    age = (now - signed) / timedelta(seconds=1)
    oldest = min(tolerance_s + max(0.0, waited_s), most_s)
    if -tolerance_s <= age <= oldest:
        return None
    how = f"{age:.0f} s old, of {oldest:.0f} s allowed" if age > 0 else f"{-age:.0f} s ahead, of {tolerance_s:g} s allowed"
    return Refusal(Code.STALE_ERROR, f"the signed time is {how}", f"{TIMESTAMP}: sign when it is sent, by a clock that is right")


@dataclass(slots=True)
class Backlog:
    """Since when the raw queue was never seen empty. `empty_at` is what an earlier process left, in Unix seconds; 0: nothing."""

    most_s: float
    empty_at: float = 0.0
    count: int = 0

    def saw(self, count: int, now: float) -> None:
        """There were `count` messages waiting in the queue."""
        self.count = count
        if count == 0:
            self.empty_at = now

    def age_s(self, now: float) -> float:
        """How long what comes now may have waited. A door that never saw the queue empty allows all that is ever allowed."""
        if self.count == 0 and self.empty_at:
            return 0.0
        return min(max(0.0, now - self.empty_at), self.most_s)
