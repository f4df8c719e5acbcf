"""A simulated fleet: real MQTT clients that come, listen, acknowledge, crash and come back, as a seed says."""

from sandbox.fleet._fleet import Fleet
from sandbox.fleet._habits import Behaviour, Habits
from sandbox.fleet._vehicle import Received, Witness
from sandbox.fleet._vins import vins

__all__ = ["Behaviour", "Fleet", "Habits", "Received", "Witness", "vins"]
