"""The MQTT door: what the platform publishes is on disk before it is acknowledged, in the archive forever, and queued at once.

It promises that a receipt means durable, that no message stops it or is taken in three times, and that what was not handed over
is handed over first after any gap. It delivers nothing, and judges no table.
"""

from manifold.recorder._recorder import Recorder

__all__ = ["Recorder"]
