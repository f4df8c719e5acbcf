"""Events that wait behind the one that a queue has in hand, bounded per vehicle.

A later heartbeat replaces a waiting one, and a later subscription an earlier one, which then counts as carried out. Connections
do not replace each other, so their number is bounded: a vehicle loses its own oldest events. Broker events may be lost anyway,
and the next heartbeat, or a deadline, makes up for that.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatcher import _metrics
from dispatcher._events import Event
from manifold.contracts.events import Connected, Disconnected, PresenceSign, Subscribed
from manifold.contracts.queue_names import QueueName

CONNECTIONS_KEPT = 20  # connects and disconnects per queue; a vehicle that flaps every few seconds never has this many waiting
_CONNECTION = (Connected, Disconnected)

Done = Callable[[], Any]


@dataclass(slots=True, eq=False)
class Job:
    """One event of one queue; `done` is called when its effects are carried out."""

    queue: QueueName
    event: Event
    done: Done | None  # None: came with QoS 0, nothing to acknowledge


def enqueue_job(waiting: deque[Job], job: Job) -> None:
    """Append `job` to the waiting ones. Jobs that it replaces are removed and done."""
    kind = type(job.event)
    if kind is PresenceSign or kind is Subscribed:
        earlier = next((each for each in waiting if type(each.event) is kind), None)
        if earlier is not None:
            waiting.remove(earlier)
            _settle_replaced(earlier, job)
            _metrics.MERGED.inc()
    elif kind in _CONNECTION:
        before = [each for each in waiting if type(each.event) in _CONNECTION]
        if len(before) >= CONNECTIONS_KEPT:
            waiting.remove(before[0])
            _settle_replaced(before[0], job)
            _metrics.SHED.inc()
    waiting.append(job)


def after_two_calls(done: Done) -> Done:
    """Return a callback that calls `done` at its second call: two queues handle the event."""
    calls = iter((lambda: None, done))
    return lambda: next(calls)()


def _settle_replaced(earlier: Job, later: Job) -> None:
    """Settle `earlier`, which `later` makes unnecessary.

    If `later` has no `done` of its own (QoS 0: the broker would not redeliver it), it takes that of `earlier`, so the earlier
    message is acknowledged only once `later` is carried out.
    """
    if later.done is None:
        later.done = earlier.done
    elif earlier.done is not None:
        earlier.done()
