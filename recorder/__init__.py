"""Record what the platform publishes: on disk before it is acknowledged, in the archive for ever, in the queues at once."""

from recorder._recorder import Recorder

__all__ = ["Recorder"]
