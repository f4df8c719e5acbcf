"""The dispatcher: a long-running process that publishes the entries of the queues to the broker.

Guarantees: each entry is delivered at least once, in seq order per owner, one in flight at a time, until the vehicle
acknowledges, with any number of replicas side by side. Decisions are made by a pure function (`step`). The dispatcher keeps no
durable state, writes no archive, and imports neither Spark nor the ingress services.
"""

from dispatcher._policy import DispatchPolicy
from dispatcher._step import OwnerState, step

__all__ = ["DispatchPolicy", "OwnerState", "step"]
