"""One direction of a connection: observes bytes, holds back incomplete packets, and replaces packets. Pure."""

from collections.abc import Callable

from manifold.sandbox.tap.scanner import Malformed, Scanner


class Passage:
    """One direction of one connection.

    To replace the current packet, its observer sets `replacement` to the packet's size and the bytes to forward instead, and
    stops the scanner. Once `unobserved` is true, because some bytes were not MQTT, all bytes are forwarded without being scanned.
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
        """Scan bytes, and return how many were scanned: all, unless an observer has stopped the scanner after a packet."""
        if self.unobserved:
            return len(data)
        try:
            return self._scanner.feed(data)
        except Malformed:
            self.unobserved = True
            return len(data)

    def observe(self, data: bytes, *, holds_incomplete: Callable[[], bool], is_enough: Callable[[], bool]) -> tuple[bytes, bytes]:
        """Scan bytes, and replace packets; return the bytes to forward now, and those that are not scanned yet.

        Each time the scanner stops, `is_enough` decides whether the rest of `data` is left unscanned. If `holds_incomplete` is
        true at the end, the bytes of an incomplete packet are held back until it is complete.
        """
        scanned = self.feed(data)
        is_complete = scanned == len(data) and not (self._scanner.unfinished and holds_incomplete())
        if is_complete and self.replacement is None and not self._held:
            return data, b""  # the usual case, without copying
        forwarded = bytearray(self._held)
        while True:
            forwarded += data[:scanned]
            data = data[scanned:]
            if self.replacement is not None:
                original_size, new_packet = self.replacement
                self.replacement = None
                forwarded[-original_size:] = new_packet  # the scanner has stopped at the end of the original
            if not data or is_enough():
                break
            scanned = self.feed(data)
        held_size = 0
        if holds_incomplete():
            held_size = min(self._scanner.unfinished, len(forwarded))  # the packet's beginning may have been forwarded already
        forwarded_size = len(forwarded) - held_size
        self._held = bytes(forwarded[forwarded_size:])
        return bytes(forwarded[:forwarded_size]), data
