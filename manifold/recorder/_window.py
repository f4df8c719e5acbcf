"""Bounds the accepted, unsettled bytes: MQTT's receive maximum only counts messages, each of up to 96 MiB."""

from collections.abc import Callable

from manifold.messaging.mqtt import Message
from manifold.recorder import _metrics

OF_EACH = 1024  # overhead per message, in bytes


class Window:
    """Calls `full` when more than `limit` bytes are held, and `free` when it is down to half of that.

    Publishers with QoS 0 cannot be slowed down and must not block the others: their messages are dropped above half of the limit.
    """

    def __init__(self, limit: int, *, full: Callable[[], None], free: Callable[[], None]) -> None:
        self.held = 0
        self._limit, self._full, self._free = limit, full, free
        self._closed = False

    def admit(self, message: Message) -> bool:
        """Hold the message; returns False if it is dropped."""
        if message.qos == 0 and self.held > self._limit // 2:
            _metrics.DROPPED.inc()
            return False
        self.held += weight(message)
        _metrics.HELD_BYTES.inc(weight(message))
        if self.held > self._limit and not self._closed:
            self._closed = True
            self._full()
        return True

    def release(self, message: Message) -> None:
        """Release a message that is settled, or will be redelivered."""
        self.held -= weight(message)
        _metrics.HELD_BYTES.dec(weight(message))
        if self._closed and self.held <= self._limit // 2:
            self._closed = False
            self._free()


def weight(message: Message) -> int:
    """The approximate size of a message in memory, in bytes."""
    size = len(message.payload) + len(message.topic) + len(message.correlation_data or b"") + OF_EACH
    if message.user_properties:
        size += sum(len(name) + len(value) for name, value in message.user_properties) + OF_EACH // 8 * len(
            message.user_properties
        )
    return size
