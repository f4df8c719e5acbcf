"""Judges whether a signed time is near enough to now, given how long a message may have waited in the raw queue. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.messages import ISO_8601, instant
from manifold.signals._received import TIMESTAMP


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
    """Since when everything that was in the raw queue has been delivered.

    A queue that is written all the time may never be seen empty. So a look at it sets a mark: the instant, and how many messages
    wait. A queue gives them in their order, so when that many have come, all that comes then was published after that instant;
    and the next look sets the next mark. Several doors share a queue, and each takes part of it: its marks pass later, never too
    early. `in_flight` messages may be on their way when the queue is counted, and are waited for, too.
    """

    most_s: float
    empty_at: float = 0.0  # in Unix seconds: what was published before was delivered; 0: nobody knows
    in_flight: int = 0
    count: int = 0  # messages that waited when the queue was last looked at
    _taken: int = 0
    _mark: tuple[float, int] | None = field(default=None)  # the instant, and how many have been taken when it has passed

    def saw(self, count: int, now: float) -> None:
        """There were `count` messages waiting in the queue."""
        self.count = count
        if count == 0:
            self.empty_at, self._mark = now, None
        elif self._mark is None:
            self._mark = (now, self._taken + count + self.in_flight)

    def took(self) -> None:
        """One message of the queue was delivered."""
        self._taken += 1
        if self._mark is not None and self._taken >= self._mark[1]:
            self.empty_at, self._mark = max(self.empty_at, self._mark[0]), None

    def paused(self) -> None:
        """Nothing more is read: what has been delivered meanwhile waits, although the queue may be empty."""
        self.count = max(self.count, 1)

    def connection_lost(self) -> None:
        """The connection was lost: what was in hand is in the queue again, in front, and its count is another."""
        self._mark = None

    def age_s(self, now: float) -> float:
        """How long what comes now may have waited. A door that knows nothing of the queue allows all that is ever allowed."""
        if self.count == 0 and self.empty_at:
            return 0.0
        return min(max(0.0, now - self.empty_at), self.most_s)


class Backlogs:
    """The backlog of each queue from which signals come: the raw queue, and its partitions."""

    def __init__(self, queues: Iterable[str], most_s: float, *, in_flight: int) -> None:
        self._of = {queue: Backlog(most_s, in_flight=in_flight) for queue in queues}

    @property
    def count(self) -> int:
        """Messages that waited, in all of them."""
        return sum(one.count for one in self._of.values())

    @property
    def empty_at(self) -> float:
        """Unix seconds: every message published before, to any of the queues, was delivered. 0: unknown."""
        return min(one.empty_at for one in self._of.values())

    @empty_at.setter
    def empty_at(self, at: float) -> None:
        for one in self._of.values():
            one.empty_at = at

    def saw(self, queue: str, count: int, now: float) -> None:
        """There were `count` messages waiting in the queue."""
        self._of[queue].saw(count, now)

    def took(self, queue: str) -> None:
        """One message of the queue was delivered, if it is one of these."""
        if queue in self._of:
            self._of[queue].took()

    def paused(self) -> None:
        """No queue is read for a while; the next look at each queue tells its state."""
        for one in self._of.values():
            one.paused()

    def connection_lost(self) -> None:
        """The connection was lost."""
        for one in self._of.values():
            one.connection_lost()

    def age_s(self, now: float, queue: str = "") -> float:
        """How long what comes now from the queue may have waited; of another queue, or none, the longest of all."""
        known = self._of.get(queue)
        return known.age_s(now) if known is not None else max(one.age_s(now) for one in self._of.values())
