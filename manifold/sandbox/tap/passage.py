"""The bytes of one direction as they go on: a packet that is not whole waits, and one may go on as another. Pure."""

from collections.abc import Callable

from manifold.sandbox.tap.scanner import Scanner


class Passage:
    """One direction of one connection. While a packet is told, `instead` may be set: its size, and what goes on for it."""

    __slots__ = ("_held", "_scanner", "instead")

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._held = b""
        self.instead: tuple[int, bytes] | None = None

    @property
    def holds(self) -> bool:
        """Whether the beginning of a packet waits."""
        return bool(self._held)

    def take(
        self, data: bytes, feed: Callable[[bytes], int], *, hold: Callable[[], bool], until: Callable[[], bool]
    ) -> tuple[bytes, bytes]:
        """What goes on of `data`, and what is left once `until` holds; `hold` tells whether an unfinished packet waits."""
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
