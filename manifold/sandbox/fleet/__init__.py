"""A simulated fleet: real MQTT clients that connect, acknowledge, crash and return, driven by a seed."""

from manifold.sandbox.fleet._behaviour_model import Behaviour, BehaviourModel
from manifold.sandbox.fleet._fleet import Fleet
from manifold.sandbox.fleet._vehicle import FleetListener, Received
from manifold.sandbox.fleet._vins import vins

__all__ = ["Behaviour", "BehaviourModel", "Fleet", "FleetListener", "Received", "vins"]
