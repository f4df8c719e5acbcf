"""One socket of a proxied connection: reading stops while there is any reason for it."""

import asyncio
from collections.abc import Callable
from typing import cast


class Side(asyncio.Protocol):
    """One socket of a proxied connection."""

    data_received: Callable[[bytes], None]  # type: ignore[assignment]  # set for each: no call between the loop and the connection

    def __init__(
        self, received: Callable[[bytes], None], lost: Callable[[], None], made: Callable[[], None], slow: Callable[[bool], None]
    ) -> None:
        self.data_received = received
        self._lost, self._made, self._slow = lost, made, slow
        self.transport: asyncio.Transport | None = None
        self._stopped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop says: here is the socket."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        if self._stopped:
            self.transport.pause_reading()
        self._made()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # how it went makes no difference
        """The loop says: the socket has gone."""
        self.transport = None
        self._lost()

    def pause_writing(self) -> None:
        """The loop says: this side is slow to take."""
        self._slow(True)

    def resume_writing(self) -> None:
        """The loop says: this side has taken enough."""
        self._slow(False)

    def stop_reading(self, reason: int) -> None:
        """Read no more until every reason is over."""
        if not self._stopped and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._stopped |= reason

    def read_again(self, reason: int) -> None:
        """`reason` is over."""
        before, self._stopped = self._stopped, self._stopped & ~reason
        if before and not self._stopped and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """Close when everything is written."""
        if self.transport is not None:
            self.transport.close()
