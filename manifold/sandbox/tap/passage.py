"""One direction of a connection: observes bytes, holds back incomplete packets, and replaces packets. Pure."""

from collections.abc import Callable

from manifold.sandbox.tap.scanner import Malformed, Scanner


class Passage:
    """One direction of one connection. An observer may set `replacement`: the current packet's size, and the bytes in its place.

    Once `unobserved`, all bytes are forwarded unread: some were not MQTT, and the broker deals with them.
    """

    __slots__ = ("_held", "_scanner", "replacement", "unobserved")

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._held = b""
        self.replacement: tuple[int, bytes] | None = None
        self.unobserved = False

    @property
    def holds(self) -> bool:
        """Whether the beginning of a packet is held back."""
        return bool(self._held)

    def feed(self, data: bytes) -> int:
        """Observe bytes; return how many were read: all, unless they include a CONNECT, a CONNACK or a changed packet."""
        if self.unobserved:
            return len(data)
        try:
            return self._scanner.feed(data)
        except Malformed:
            self.unobserved = True
            return len(data)

    def take(self, data: bytes, *, hold: Callable[[], bool], until: Callable[[], bool]) -> tuple[bytes, bytes]:
        """Return the bytes to forward, and the rest of `data` once `until` is true. If `hold`, keep an incomplete packet."""
        seen = self.feed(data)
        if seen == len(data) and self.replacement is None and not self._held and not (self._scanner.unfinished and hold()):
            return data, b""
        gone = bytearray(self._held)
        while True:
            gone += data[:seen]
            data = data[seen:]
            if self.replacement is not None:
                size, packet = self.replacement
                self.replacement = None
                gone[-size:] = packet
            if not data or until():
                break
            seen = self.feed(data)
        keep = min(self._scanner.unfinished, len(gone)) if hold() else 0
        self._held = bytes(gone[len(gone) - keep :])
        return bytes(gone[: len(gone) - keep]), data
