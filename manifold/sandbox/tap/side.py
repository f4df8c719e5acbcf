"""One socket of a proxied connection, with backpressure: reading pauses while any reason for it holds."""

import asyncio
from collections.abc import Callable
from typing import cast


class Side(asyncio.Protocol):
    """One socket of a proxied connection."""

    data_received: Callable[[bytes], None]  # type: ignore[assignment]  # an attribute, which saves a call per read

    def __init__(
        self, received: Callable[[bytes], None], lost: Callable[[], None], made: Callable[[], None], slow: Callable[[bool], None]
    ) -> None:
        self.data_received = received
        self._lost, self._made, self._slow = lost, made, slow
        self.transport: asyncio.Transport | None = None
        self._stopped = 0  # the reasons for which reading pauses, as bit flags; see connection.py

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; pause it if a reason already holds."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport does not derive from asyncio.Transport
        if self._stopped:
            self.transport.pause_reading()
        self._made()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the cause does not matter
        """Report that the socket is closed."""
        self.transport = None
        self._lost()

    def pause_writing(self) -> None:
        """Report that the write buffer is full."""
        self._slow(True)

    def resume_writing(self) -> None:
        """Report that the write buffer has drained."""
        self._slow(False)

    def pause(self, reason: int) -> None:
        """Pause reading for a reason, until all reasons are cleared."""
        if not self._stopped and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._stopped |= reason

    def resume(self, reason: int) -> None:
        """Clear a reason; resume reading if it was the last."""
        before, self._stopped = self._stopped, self._stopped & ~reason
        if before and not self._stopped and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """Close after pending writes."""
        if self.transport is not None:
            self.transport.close()
