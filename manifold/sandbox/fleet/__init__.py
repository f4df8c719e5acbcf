"""A simulated fleet: real MQTT clients that come, listen, acknowledge, crash and come back, as a seed says."""

from manifold.sandbox.fleet._behaviour_model import Behaviour, BehaviourModel
from manifold.sandbox.fleet._fleet import Fleet
from manifold.sandbox.fleet._vehicle import FleetListener, Received
from manifold.sandbox.fleet._vins import vins

__all__ = ["Behaviour", "BehaviourModel", "Fleet", "FleetListener", "Received", "vins"]
