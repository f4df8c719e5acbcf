"""The dispatcher: a long-running process that publishes the entries of the queues to the broker.

It promises to deliver each entry at least once, in seq order per owner, one in flight at a time, until the vehicle acknowledges,
with any number of replicas side by side. It decides in a pure function (`step`), keeps no lasting state of its own, writes no
archive, and imports neither Spark nor the doors.
"""

from dispatcher._policy import DispatchPolicy
from dispatcher._step import OwnerState, step

__all__ = ["DispatchPolicy", "OwnerState", "step"]
