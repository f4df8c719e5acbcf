"""Deliver entries to vehicles: at least once, in seq order per owner, one in flight at a time, until the vehicle acknowledges."""

from dispatcher._rules import Rules
from dispatcher._step import State, step

__all__ = ["Rules", "State", "step"]
