"""Forwarding of one direction: an incomplete packet is held back, and a packet may be replaced by another. Pure."""

from collections.abc import Callable

from manifold.sandbox.tap.scanner import Scanner


class Passage:
    """One direction of one connection. An observer may set `instead` for the current packet: its size, and its replacement."""

    __slots__ = ("_held", "_scanner", "instead")

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._held = b""
        self.instead: tuple[int, bytes] | None = None

    @property
    def holds(self) -> bool:
        """Whether the beginning of a packet is held back."""
        return bool(self._held)

    def take(
        self, data: bytes, feed: Callable[[bytes], int], *, hold: Callable[[], bool], until: Callable[[], bool]
    ) -> tuple[bytes, bytes]:
        """Return the bytes to forward, and the rest of `data` once `until` is true; `hold`: hold back an incomplete packet."""
        seen = feed(data)
        if seen == len(data) and self.instead is None and not self._held and not (self._scanner.unfinished and hold()):
            return data, b""
        gone = bytearray(self._held)
        while True:
            gone += data[:seen]
            data = data[seen:]
            if self.instead is not None:
                size, packet = self.instead
                self.instead = None
                gone[-size:] = packet
            if not data or until():
                break
            seen = feed(data)
        keep = min(self._scanner.unfinished, len(gone)) if hold() else 0
        self._held = bytes(gone[len(gone) - keep :])
        return bytes(gone[: len(gone) - keep]), data
