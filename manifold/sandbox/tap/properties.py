"""Building blocks of MQTT packets, mainly MQTT 5 properties, under EMQX's names. Pure."""

from typing import Any

from manifold.sandbox.tap.scanner import Malformed

Properties = dict[str, Any]  # by EMQX's names, like an event's `pub_props`; values are strings and integers

USER, PAIRS = "User-Property", "User-Property-Pairs"

_USER_PROPERTY = 0x26

# All others of MQTT 5, section 2.2.2.2, under EMQX's names. Types: bytes of an integer, v(ariable integer), s(tring), b(inary).
_PROPERTIES: dict[int, tuple[str, int | str]] = {
    0x01: ("Payload-Format-Indicator", 1),
    0x02: ("Message-Expiry-Interval", 4),
    0x03: ("Content-Type", "s"),
    0x08: ("Response-Topic", "s"),
    0x09: ("Correlation-Data", "b"),
    0x0B: ("Subscription-Identifier", "v"),
    0x11: ("Session-Expiry-Interval", 4),
    0x12: ("Assigned-Client-Identifier", "s"),
    0x13: ("Server-Keep-Alive", 2),
    0x15: ("Authentication-Method", "s"),
    0x16: ("Authentication-Data", "b"),
    0x17: ("Request-Problem-Information", 1),
    0x18: ("Will-Delay-Interval", 4),
    0x19: ("Request-Response-Information", 1),
    0x1A: ("Response-Information", "s"),
    0x1C: ("Server-Reference", "s"),
    0x1F: ("Reason-String", "s"),
    0x21: ("Receive-Maximum", 2),
    0x22: ("Topic-Alias-Maximum", 2),
    0x23: ("Topic-Alias", 2),
    0x24: ("Maximum-QoS", 1),
    0x25: ("Retain-Available", 1),
    0x27: ("Maximum-Packet-Size", 4),
    0x28: ("Wildcard-Subscription-Available", 1),
    0x29: ("Subscription-Identifier-Available", 1),
    0x2A: ("Shared-Subscription-Available", 1),
}


class Reader:
    """Reads a packet's body sequentially."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def integer(self, size: int) -> int:
        """Read a big-endian integer of `size` bytes."""
        part = self.data[self.at : self.at + size]
        if len(part) < size:
            raise Malformed("packet too short")
        self.at += size
        return int.from_bytes(part)

    def variable(self) -> int:
        """Read a variable byte integer."""
        value = shift = 0
        while True:
            digit = self.integer(1)
            value |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return value
            if shift > 21:
                raise Malformed("a length of more than four bytes")

    def binary(self) -> bytes:
        """Read length-prefixed bytes (two bytes of length)."""
        size = self.integer(2)
        part = self.data[self.at : self.at + size]
        if len(part) < size:
            raise Malformed("packet too short")
        self.at += size
        return part

    def text(self) -> str:
        """Read a string; bytes that are not UTF-8 become U+FFFD, as in EMQX."""
        return self.binary().decode("utf-8", "replace")

    def rest(self) -> bytes:
        """Return the remaining bytes."""
        return self.data[self.at :]

    @property
    def more(self) -> bool:
        """Whether any bytes are left."""
        return self.at < len(self.data)

    def properties(self) -> Properties:
        """Read length-prefixed properties."""
        size = self.variable()
        part = self.data[self.at : self.at + size]
        if len(part) < size:
            raise Malformed("properties cut short")
        self.at += size
        return read_properties(part)


def read_properties(raw: bytes) -> Properties:
    """Parse properties without their length. `User-Property` is always set: the last value of each key; the pairs keep all."""
    found: Properties = {}
    pairs: list[dict[str, str]] = []
    at, end = 0, len(raw)
    while at < end:
        if raw[at] == _USER_PROPERTY:  # inlined: a request has two of these, and little else
            at = _pair(raw, at + 1, end, pairs)
        else:
            read = Reader(raw, at)
            _other(read, found)
            at = read.at
    found[USER] = {pair["key"]: pair["value"] for pair in pairs}
    if pairs:
        found[PAIRS] = pairs
    return found


def _pair(raw: bytes, at: int, end: int, pairs: list[dict[str, str]]) -> int:
    try:
        value = at + 2 + (raw[at] << 8 | raw[at + 1])
        stop = value + 2 + (raw[value] << 8 | raw[value + 1])
    except IndexError as exc:
        raise Malformed("user property cut short") from exc
    if stop > end:
        raise Malformed("user property cut short")
    key, text = raw[at + 2 : value].decode("utf-8", "replace"), raw[value + 2 : stop].decode("utf-8", "replace")
    pairs.append({"key": key, "value": text})
    return stop


def _other(read: Reader, found: Properties) -> None:
    number = read.integer(1)
    if number not in _PROPERTIES:
        raise Malformed(f"unknown property {number}")
    name, kind = _PROPERTIES[number]
    if isinstance(kind, int):
        found[name] = read.integer(kind)
    else:
        found[name] = read.variable() if kind == "v" else read.text()
