"""Events that wait behind the current event of their queue, bounded per vehicle.

A later heartbeat replaces a waiting one, and a later subscription replaces an earlier one; the replaced event counts as handled.
Connects and disconnects do not replace each other, so their number is bounded: a vehicle with too many loses its oldest
ones. The broker may lose events too, and the next heartbeat, or a deadline, makes up for both losses.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatcher import _metrics
from dispatcher._events import Event
from manifold.contracts.events import Connected, Disconnected, PresenceSign, Subscribed
from manifold.contracts.queue_names import QueueName

# Connects and disconnects that may wait in one queue. Even a vehicle that reconnects every few seconds never has so many waiting.
MAX_WAITING_CONNECTIONS = 20
_CONNECTION_EVENTS = (Connected, Disconnected)

Done = Callable[[], Any]


@dataclass(slots=True, eq=False)
class Job:
    """One event of one queue; `done` is called when its effects are carried out."""

    queue: QueueName
    event: Event
    done: Done | None  # None if the event came with QoS 0, so that nothing is acknowledged


def enqueue_job(waiting: deque[Job], job: Job) -> None:
    """Append `job` to the waiting jobs, and remove and finish a job that it replaces.

    A sign of presence or a subscription replaces one of the same kind. If too many connection events wait, another replaces the
    oldest of them. Any other event replaces nothing.
    """
    kind = type(job.event)
    if kind is PresenceSign or kind is Subscribed:
        replaced = next((other for other in waiting if type(other.event) is kind), None)
        if replaced is not None:
            waiting.remove(replaced)
            _finish_replaced(replaced, job)
            _metrics.MERGED.inc()
    elif kind in _CONNECTION_EVENTS:
        connections = [other for other in waiting if type(other.event) in _CONNECTION_EVENTS]
        if len(connections) >= MAX_WAITING_CONNECTIONS:
            oldest = connections[0]
            waiting.remove(oldest)
            _finish_replaced(oldest, job)
            _metrics.SHED.inc()
    waiting.append(job)


def after_two_calls(done: Done) -> Done:
    """Return a callback that calls `done` when it is called the second time, for an event that two queues handle."""
    calls = 0

    def count_call() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            done()

    return count_call


def _finish_replaced(replaced: Job, later: Job) -> None:
    """Call `done` of `replaced`, which `later` makes unnecessary.

    A job without `done` came with QoS 0, so the broker would not redeliver it. If `later` is such a job, it takes over `done` of
    `replaced`; so the message of `replaced` is acknowledged only once `later` is handled.
    """
    if later.done is None:
        later.done = replaced.done
    elif replaced.done is not None:
        replaced.done()
