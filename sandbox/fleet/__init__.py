"""A simulated fleet: real MQTT clients that come, listen, acknowledge, crash and come back, as a seed says."""

from sandbox.fleet._behaviour_model import Behaviour, BehaviourModel
from sandbox.fleet._fleet import Fleet
from sandbox.fleet._vehicle import FleetListener, Received
from sandbox.fleet._vins import vins

__all__ = ["Behaviour", "BehaviourModel", "Fleet", "FleetListener", "Received", "vins"]
