"""Bounds the bytes of unsettled messages: MQTT's receive maximum only bounds their number, and each may have 96 MiB."""

from collections.abc import Callable

from manifold.messaging.mqtt import Message
from manifold.recorder import _metrics

# Approximate memory that Python objects take in addition to their content, in bytes.
MESSAGE_OVERHEAD = 1024
PROPERTY_OVERHEAD = 128  # of one user property


class Window:
    """Counts the bytes of unsettled messages. Calls `on_full` when they exceed `limit`, and then `on_free` at half of `limit`.

    Publishers with QoS 0 cannot be slowed down and must not block the others, so their messages are dropped while more than half
    of the limit is in use.
    """

    def __init__(self, limit: int, *, on_full: Callable[[], None], on_free: Callable[[], None]) -> None:
        self.held_bytes = 0  # of the unsettled messages
        self._limit, self._on_full, self._on_free = limit, on_full, on_free
        self._is_full = False

    def admit(self, message: Message) -> bool:
        """Count the message as unsettled and return True; return False, without counting it, if it must be dropped."""
        if message.qos == 0 and self.held_bytes > self._limit // 2:
            _metrics.DROPPED.inc()
            return False
        self.held_bytes += weight(message)
        _metrics.HELD_BYTES.inc(weight(message))
        if self.held_bytes > self._limit and not self._is_full:
            self._is_full = True
            self._on_full()
        return True

    def release(self, message: Message) -> None:
        """Stop counting a message, because it is settled or will be redelivered."""
        self.held_bytes -= weight(message)
        _metrics.HELD_BYTES.dec(weight(message))
        if self._is_full and self.held_bytes <= self._limit // 2:
            self._is_full = False
            self._on_free()


def weight(message: Message) -> int:
    """The approximate size of a message in memory, in bytes."""
    size = MESSAGE_OVERHEAD + len(message.payload) + len(message.topic) + len(message.correlation_data or b"")
    for name, value in message.user_properties:
        size += PROPERTY_OVERHEAD + len(name) + len(value)
    return size
