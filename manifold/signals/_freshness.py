"""Freshness check of a signed timestamp, allowing for the time that a message may have waited in the raw queue. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.messages import ISO_8601, instant
from manifold.signals._received import TIMESTAMP


def check_freshness(timestamp: str, now: datetime, *, tolerance_s: float, max_wait_s: float, max_age_s: float) -> Refusal | None:
    """Return why the signed timestamp is out of range, or None.

    A message may be as old as the tolerance plus `max_wait_s`, its possible wait in the queue. It may never be older than
    `max_age_s`, because Redis keeps nonces no longer than that. The wait does not extend the tolerance for future timestamps:
    waiting makes a message only older.
    """
    try:
        signed = instant(timestamp)
    except ValueError:
        return Refusal(Code.STALE_ERROR, "the signed time is invalid", f"{TIMESTAMP}: {ISO_8601}")
    age_s = (now - signed) / timedelta(seconds=1)
    allowed_s = min(tolerance_s + max(0.0, max_wait_s), max_age_s)
    if -tolerance_s <= age_s <= allowed_s:
        return None
    if age_s > 0:
        deviation = f"{age_s:.0f} s old, of {allowed_s:.0f} s allowed"
    else:
        deviation = f"{-age_s:.0f} s ahead, of {tolerance_s:g} s allowed"
    return Refusal(
        Code.STALE_ERROR, f"the signed time is {deviation}", f"{TIMESTAMP}: sign when it is sent, by a clock that is right"
    )


class _Mark(NamedTuple):
    """A depth check: every message published before `at` is delivered once the deliveries have reached `reached_after`."""

    at: float  # Unix seconds
    reached_after: int  # number of deliveries


@dataclass(slots=True)
class Backlog:
    """The backlog of one queue: how many messages wait, and up to which time every published message has been delivered.

    A depth check may never find a busy queue empty. So a check sets a mark, with its time and the number of waiting messages.
    Queues are FIFO: once that many messages were delivered, every message delivered afterwards was published after the mark's
    time. The next depth check then sets a new mark.

    If several doors share a queue, each door receives only a part of the messages, so it reaches its marks later than necessary,
    but never too early. Up to `in_flight` messages may be in transit while the queue is counted, so the mark waits for that many
    more deliveries.
    """

    max_age_s: float
    delivered_until: float = 0.0  # Unix seconds; every message published before this time was delivered. 0: unknown
    in_flight: int = 0
    count: int = 0  # messages waiting at the last check
    _delivered: int = 0
    _mark: _Mark | None = None

    def observe_depth(self, count: int, now: float) -> None:
        """Record that `count` messages were waiting in the queue at `now`, in Unix seconds."""
        self.count = count
        if count == 0:
            self.delivered_until, self._mark = now, None
        elif self._mark is None:
            self._mark = _Mark(at=now, reached_after=self._delivered + count + self.in_flight)

    def record_delivery(self) -> None:
        """Record one delivery."""
        self._delivered += 1
        if self._mark is not None and self._delivered >= self._mark.reached_after:
            self.delivered_until = max(self.delivered_until, self._mark.at)
            self._mark = None

    def connection_lost(self) -> None:
        """Drop the mark: unacknowledged messages are back at the head of the queue, which invalidates the count."""
        self._mark = None

    def age_s(self, now: float) -> float:
        """Return how many seconds a message delivered now may have waited; `max_age_s` if nothing is known of the queue."""
        if self.count == 0 and self.delivered_until:  # the last check found the queue empty
            return 0.0
        return min(max(0.0, now - self.delivered_until), self.max_age_s)  # `max_age_s` if `delivered_until` is 0, unknown


class Backlogs:
    """The backlogs of all signal queues: the raw queue and its partitions."""

    def __init__(self, queues: Iterable[str], max_age_s: float, *, in_flight: int) -> None:
        self._by_queue = {queue: Backlog(max_age_s, in_flight=in_flight) for queue in queues}

    @property
    def count(self) -> int:
        """Waiting messages in all queues."""
        return sum(backlog.count for backlog in self._by_queue.values())

    @property
    def delivered_until(self) -> float:
        """Unix seconds; every message published to any of the queues before this time was delivered. 0: unknown."""
        return min(backlog.delivered_until for backlog in self._by_queue.values())

    @delivered_until.setter
    def delivered_until(self, unix_s: float) -> None:
        for backlog in self._by_queue.values():
            backlog.delivered_until = unix_s

    def observe_depth(self, queue: str, count: int, now: float) -> None:
        """Record that `count` messages were waiting in the queue at `now`, in Unix seconds."""
        self._by_queue[queue].observe_depth(count, now)

    def record_delivery(self, queue: str) -> None:
        """Record one delivery; do nothing if the queue is no signal queue."""
        if queue in self._by_queue:
            self._by_queue[queue].record_delivery()

    def connection_lost(self) -> None:
        """Drop the marks of every queue."""
        for backlog in self._by_queue.values():
            backlog.connection_lost()

    def age_s(self, now: float) -> float:
        """Return how many seconds a message delivered now from any signal queue may have waited."""
        return max(backlog.age_s(now) for backlog in self._by_queue.values())

    def queue_age_s(self, queue: str, now: float) -> float:
        """Return how many seconds a message delivered now from this queue may have waited.

        The depths of other queues than signal queues are not recorded; for these, return the maximum over all signal queues.
        """
        backlog = self._by_queue.get(queue)
        return self.age_s(now) if backlog is None else backlog.age_s(now)
