"""Bounds the bytes that the recorder has accepted and not settled: MQTT's receive maximum counts messages of up to 96 MiB."""

from collections.abc import Callable

from manifold.messaging.mqtt import Message
from manifold.recorder import _metrics

OF_EACH = 1024  # bytes that a message takes beside what it holds


class Window:
    """`full` is called when more than `limit` bytes are held, `free` when it is half of that again.

    Who sends with QoS 0 is never told to wait, and must not be what the others wait for: above half of the limit it is dropped.
    """

    def __init__(self, limit: int, *, full: Callable[[], None], free: Callable[[], None]) -> None:
        self.held = 0
        self._limit, self._full, self._free = limit, full, free
        self._closed = False

    def admit(self, message: Message) -> bool:
        """Hold the message; False: it is dropped."""
        if message.qos == 0 and self.held > self._limit // 2:
            _metrics.DROPPED.inc()
            return False
        self.held += weight(message)
        _metrics.HELD_BYTES.set(self.held)
        if self.held > self._limit and not self._closed:
            self._closed = True
            self._full()
        return True

    def release(self, message: Message) -> None:
        """The message is settled, or will come again."""
        self.held -= weight(message)
        _metrics.HELD_BYTES.set(self.held)
        if self._closed and self.held <= self._limit // 2:
            self._closed = False
            self._free()


def weight(message: Message) -> int:
    """About how many bytes the message takes."""
    size = len(message.payload) + len(message.topic) + len(message.correlation_data or b"") + OF_EACH
    if message.user_properties:
        size += sum(len(name) + len(value) for name, value in message.user_properties) + OF_EACH // 8 * len(
            message.user_properties
        )
    return size
