"""Freshness check of a signed timestamp, allowing for the time that a message may have waited in the raw queue. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.messages import ISO_8601, instant
from manifold.signals._received import TIMESTAMP


def check_freshness(timestamp: str, now: datetime, *, tolerance_s: float, waited_s: float, max_age_s: float) -> Refusal | None:
    """Return why the signed timestamp is out of range, or None.

    A message may be as old as the tolerance plus its possible wait in the queue, but never older than `max_age_s`, because nonces
    are kept no longer. Waiting does not make a message newer, so the tolerance for future timestamps is not extended.
    """
    try:
        signed = instant(timestamp)
    except ValueError:
        return Refusal(Code.STALE_ERROR, "the signed time is invalid", f"{TIMESTAMP}: {ISO_8601}")
    age = (now - signed) / timedelta(seconds=1)
    oldest = min(tolerance_s + max(0.0, waited_s), max_age_s)
    if -tolerance_s <= age <= oldest:
        return None
    how = f"{age:.0f} s old, of {oldest:.0f} s allowed" if age > 0 else f"{-age:.0f} s ahead, of {tolerance_s:g} s allowed"
    return Refusal(Code.STALE_ERROR, f"the signed time is {how}", f"{TIMESTAMP}: sign when it is sent, by a clock that is right")


@dataclass(slots=True)
class Backlog:
    """The time up to which every message published to the queue has been delivered.

    A busy queue may never be seen empty. So a depth check sets a mark: the time, and the number of waiting messages. Queues are
    FIFO, so once that many messages were delivered, every later one was published after the mark; the next check sets a new one.
    If several doors share a queue, each receives only a part: its marks are reached later, never too early. `in_flight` messages
    may be in transit when the queue is counted, and are waited for as well.
    """

    max_age_s: float
    empty_at: float = 0.0  # Unix seconds: every message published before was delivered; 0: unknown
    in_flight: int = 0
    count: int = 0  # messages waiting at the last check
    _taken: int = 0
    _mark: tuple[float, int] | None = field(default=None)  # time, and the value of `_taken` at which the mark is reached

    def observe_depth(self, count: int, now: float) -> None:
        """Record that `count` messages were waiting in the queue at `now`, in Unix seconds."""
        self.count = count
        if count == 0:
            self.empty_at, self._mark = now, None
        elif self._mark is None:
            self._mark = (now, self._taken + count + self.in_flight)

    def record_delivery(self) -> None:
        """Record one delivery."""
        self._taken += 1
        if self._mark is not None and self._taken >= self._mark[1]:
            self.empty_at, self._mark = max(self.empty_at, self._mark[0]), None

    def connection_lost(self) -> None:
        """Drop the mark: unacknowledged messages are back at the head of the queue, which invalidates the count."""
        self._mark = None

    def age_s(self, now: float) -> float:
        """Return how many seconds a message delivered now may have waited; `max_age_s` if nothing is known of the queue."""
        if self.count == 0 and self.empty_at:
            return 0.0
        return min(max(0.0, now - self.empty_at), self.max_age_s)


class Backlogs:
    """The backlogs of all signal queues: the raw queue and its partitions."""

    def __init__(self, queues: Iterable[str], max_age_s: float, *, in_flight: int) -> None:
        self._of = {queue: Backlog(max_age_s, in_flight=in_flight) for queue in queues}

    @property
    def count(self) -> int:
        """Waiting messages in all queues."""
        return sum(one.count for one in self._of.values())

    @property
    def empty_at(self) -> float:
        """Unix seconds: every message published before, to any of the queues, was delivered. 0: unknown."""
        return min(one.empty_at for one in self._of.values())

    @empty_at.setter
    def empty_at(self, at: float) -> None:
        for one in self._of.values():
            one.empty_at = at

    def observe_depth(self, queue: str, count: int, now: float) -> None:
        """Record that `count` messages were waiting in the queue at `now`."""
        self._of[queue].observe_depth(count, now)

    def record_delivery(self, queue: str) -> None:
        """Record one delivery, if the queue is tracked."""
        if queue in self._of:
            self._of[queue].record_delivery()

    def connection_lost(self) -> None:
        """Drop the marks of every queue."""
        for one in self._of.values():
            one.connection_lost()

    def age_s(self, now: float, queue: str = "") -> float:
        """Return how many seconds a message from the queue may have waited; for an unknown queue, the maximum over all."""
        known = self._of.get(queue)
        return known.age_s(now) if known is not None else max(one.age_s(now) for one in self._of.values())
