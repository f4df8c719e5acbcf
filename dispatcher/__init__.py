"""Deliver entries to vehicles: at least once, in seq order per owner, one in flight at a time, until the vehicle acknowledges."""

from dispatcher._policy import DispatchPolicy
from dispatcher._step import OwnerState, step

__all__ = ["DispatchPolicy", "OwnerState", "step"]
