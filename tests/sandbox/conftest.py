"""The broker and the tap in front of it, as the tests of the tap start them."""

from tests.tap.conftest import front_door, own_front_door, vin

__all__ = ["front_door", "own_front_door", "vin"]
