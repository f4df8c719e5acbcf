"""The signals service of the signals tests."""

from tests.manifold.signals.conftest import door, gateway, running_door

__all__ = ["door", "gateway", "running_door"]
