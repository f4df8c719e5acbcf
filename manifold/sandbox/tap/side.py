"""One socket of a proxied connection, with backpressure: reading pauses while there is at least one reason to pause."""

import asyncio
from collections.abc import Callable
from typing import cast


class Side(asyncio.Protocol):
    """One socket of a proxied connection.

    It calls `on_data` with received bytes, `on_connected` and `on_lost` when the socket is connected and closed, and
    `on_slow(True)` and `on_slow(False)` when the write buffer has filled up and drained.
    """

    data_received: Callable[[bytes], None]  # type: ignore[assignment]  # an attribute instead of a method saves a call per read

    def __init__(
        self,
        on_data: Callable[[bytes], None],
        on_lost: Callable[[], None],
        on_connected: Callable[[], None],
        on_slow: Callable[[bool], None],
    ) -> None:
        self.data_received = on_data
        self._on_lost, self._on_connected, self._on_slow = on_lost, on_connected, on_slow
        self.transport: asyncio.Transport | None = None
        self._pause_reasons = 0  # bit flags, defined in connection.py; 0: reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, and pause it if there already is a reason."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport does not derive from asyncio.Transport
        if self._pause_reasons:
            self.transport.pause_reading()
        self._on_connected()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the cause does not matter
        """Report that the socket is closed."""
        self.transport = None
        self._on_lost()

    def pause_writing(self) -> None:
        """Report that the write buffer is full."""
        self._on_slow(True)

    def resume_writing(self) -> None:
        """Report that the write buffer has drained."""
        self._on_slow(False)

    def pause(self, reason: int) -> None:
        """Pause reading for a reason, until `resume` has cleared all reasons."""
        if not self._pause_reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._pause_reasons |= reason

    def resume(self, reason: int) -> None:
        """Clear one or more reasons; resume reading if none is left."""
        was_paused = self._pause_reasons != 0
        self._pause_reasons &= ~reason
        if was_paused and not self._pause_reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """Close after pending writes."""
        if self.transport is not None:
            self.transport.close()
