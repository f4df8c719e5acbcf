"""Broker and tap as the tests of the tap start them."""

from tests.manifold.sandbox.tap.conftest import own_tap_server, tap_server, vin

__all__ = ["own_tap_server", "tap_server", "vin"]
